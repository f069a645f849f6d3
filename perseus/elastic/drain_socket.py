"""The socket by which `perseusrun --drain` reaches the launcher of an elastic job.

It is a Unix socket whose name begins with the launcher's process id, in a folder that only the user
may enter. It gets its name once it listens, so that one that refuses a caller is a dead launcher's.
A caller sends one message, gets one answer, and is hung up on:

    {"says": "describe"}                  {"command": "python train.py"}
    {"says": "drain", "host": "node1"}    {"done": "..."} or {"error": "..."}
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from perseus.run.ending import NEVER
from perseus.run.job_folder import FOLDER, SOCKET, is_own_user, listen, path_in
from perseus.run.own_file import open_folder

__all__ = ["LONGEST", "DrainSocket", "folders", "path_in", "sockets_in"]

#: Bytes of a message and of an answer.
LONGEST = 16384
# A caller has so long to say something, and so many may do so at once.
_SECONDS_TO_SPEAK = 5.0
_MOST_CALLERS = 8
_LONGEST_COMMAND = 200  # letters of it that are told


def folders() -> list[Path]:
    """Returns where the sockets of this user's jobs may be, the first choice first.

    The first one is not there in every shell: a batch system's may have none.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    first = [Path(runtime, "perseus")] if os.path.isabs(runtime) and os.path.isdir(runtime) else []
    return [*first, Path(f"/tmp/perseus-{os.geteuid()}")]


def sockets_in(folder: int) -> list[tuple[int, str]]:
    """Returns the process ids of the launchers with a socket in an open folder, and its name."""
    names = [(name.partition("."), name) for name in sorted(os.listdir(folder))]
    names = [(parts, name) for parts, name in names if name.endswith(SOCKET)]
    return [(int(process), name) for (process, _, _), name in names if process.isdecimal()]


class DrainSocket:
    """Never blocks. Not thread-safe.

    Args:
      selector: tells of callers.
      command: that of the ranks.
      drain: drains a host, and returns what it has done; raises ValueError if it cannot.
      beside: the job's folder, if it has one; the socket is beside it, and has its name, which
        begins with the number of the job.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        command: Sequence[str],
        drain: Callable[[str], str],
        beside: str = "",
    ) -> None:
        self._selector = selector
        self._command = shlex.join(command)[:_LONGEST_COMMAND]
        self._drain = drain
        self._beside = beside
        # Processes of several containers may have one number, and share a folder.
        name = os.path.basename(beside).removesuffix(FOLDER)
        self._name = (name or f"{os.getpid()}.{secrets.token_hex(4)}") + SOCKET
        self.path: str | None = None  # while it is open
        self._folder: int | None = None
        self._listener: socket.socket | None = None
        self._callers: dict[socket.socket, float] = {}  # and until when each may speak

    def open(self) -> str:
        """Listens from now on; returns "", or why nobody can call."""
        faults = []
        first = [Path(self._beside).parent] if self._beside else []
        for folder in dict.fromkeys([*first, *folders()]):
            try:
                self._listen_in(folder)
                return ""
            except OSError as error:
                faults.append(f"{folder}: {error.strerror or error}")
        return "; ".join(faults)

    def close(self) -> None:
        """Hangs up on all callers, and removes the socket."""
        for caller in list(self._callers):
            self._hang_up(caller)
        if self._listener is not None:
            self._close_listener()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
            os.close(self._folder)
            self._folder = self.path = None

    def next_deadline(self) -> float:
        """Returns when `handle_deadlines` must be called again, in seconds of time.monotonic."""
        return min(self._callers.values(), default=NEVER)

    def handle_deadlines(self, now: float) -> None:
        for caller in [caller for caller, until in self._callers.items() if now >= until]:
            self._hang_up(caller)

    def _listen_in(self, path: Path) -> None:
        folder = open_folder(path, makes=True)
        try:
            os.fchmod(folder, 0o700)
            listener = listen(folder, self._name)
        except OSError:
            os.close(folder)
            raise
        self._folder, self._listener = folder, listener
        self.path = str(path / self._name)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def _close_listener(self) -> None:
        assert self._listener is not None
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            caller, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor is left: do not ask again and again
            return self._close_listener()
        if not is_own_user(caller) or len(self._callers) >= _MOST_CALLERS:
            return caller.close()
        caller.setblocking(False)
        self._callers[caller] = time.monotonic() + _SECONDS_TO_SPEAK
        self._selector.register(caller, selectors.EVENT_READ, lambda: self._serve(caller))

    def _serve(self, caller: socket.socket) -> None:
        try:
            message, _, flags, _ = caller.recvmsg(LONGEST)
            if message and not flags & socket.MSG_TRUNC:
                answer = json.dumps(self._answer(message)).encode()
                caller.send(answer[:LONGEST])
        except BlockingIOError:
            return
        except OSError:  # the caller has gone
            pass
        self._hang_up(caller)

    def _hang_up(self, caller: socket.socket) -> None:
        del self._callers[caller]
        self._selector.unregister(caller)
        caller.close()

    def _answer(self, message: bytes) -> dict[str, str]:
        try:
            said = json.loads(message)
        except (ValueError, RecursionError):
            said = None
        match said:
            case {"says": "describe"}:
                return {"command": self._command}
            case {"says": "drain", "host": str(host)}:
                try:
                    return {"done": self._drain(host)}
                except ValueError as error:
                    return {"error": str(error)}
        return {
            "error": "this perseusrun does not understand the other one; are both of a version?"
        }
