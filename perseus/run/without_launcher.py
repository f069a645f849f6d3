"""Lets an agent outlive its launcher, until another launcher takes it over.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from perseus.run import agent_protocol as protocol
    from perseus.run import job_folder
    from perseus.run.driver_log import DriverLog
    from perseus.run.kept_output import KeptOutput
else:  # in an agent, which is run by its path
    import agent_protocol as protocol
    import job_folder
    from driver_log import DriverLog
    from kept_output import KeptOutput

#: The argument with which an agent's program hands a launcher over to an agent that runs already.
TAKE_OVER = "--take-over"
#: It says so of an agent that does not run.
GONE = "its agent has ended"
_MOST_CALLERS = 8
_SECONDS_TO_NOTICE = 10.0  # until an agent sees that its launcher has died
# Ranks that have waited in vain have so long to end by themselves.
_SECONDS_TO_LEAVE = 30.0
NEVER = float("inf")


class WithoutLauncher:
    """Listens in the job's folder. Never blocks. Not thread-safe.

    Args:
      how: the folder, the agent's name there, the secret, the seconds that ranks wait for another
        launcher, those for which they go on without one at all, if these are limited, and the
        files that get the ranks' output (Output.files), if they are on this machine.
      take_over: has the agent go on with another launcher's stdin and stdout.
      end: ends the agent's ranks.

    Raises OSError if the folder cannot be used.
    """

    def __init__(
        self,
        how: Mapping[str, Any],
        selector: selectors.BaseSelector,
        take_over: Callable[[int, int], None],
        end: Callable[[], None],
    ) -> None:
        self.is_alone = False
        self._path = job_folder.path_of(how["folder"])
        self._is_elsewhere = self._path != how["folder"]  # than the launcher
        self._name: str = how["name"]
        self._secret: str = how["secret"]
        self._wait: float = how["wait"]
        self._limit = NEVER if how["limit"] is None else float(how["limit"])
        self._files: tuple[str, int] | None = how.get("files")
        self._selector = selector
        self._take_over = take_over
        self._end = end
        self._was_told_to_end = False  # by `perseusrun --end`
        self._alone_since = 0.0
        self._alone_until = NEVER
        self._logs: dict[int, DriverLog] = {}
        self._output = KeptOutput()
        self._leave_by: dict[int, float] = {}  # when to kill ranks that have waited in vain
        self._callers: list[socket.socket] = []
        # The connection to the program that has handed a launcher over, which waits for its end.
        self._holder: socket.socket | None = None
        if self._is_elsewhere:
            job_folder.make_agents_folder(self._path)
        self._folder = job_folder.open_job_folder(self._path)
        self._listener = job_folder.listen(self._folder, self._name + job_folder.SOCKET)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    # ---- What happens to the ranks.

    def add_rank(self, rank: int) -> None:
        self._logs[rank] = DriverLog()

    def says(self, kind: int, rank: int, payload: bytes) -> None:
        """Notes what the agent has to tell the launcher, whether or not there is one."""
        if kind == protocol.TO_DRIVER:
            self._logs[rank].hear(payload)
        elif kind == protocol.EXIT:
            self._logs[rank].end(int(payload))
            self._leave_by.pop(rank, None)
        elif self.is_alone and kind in (protocol.STDOUT, protocol.STDERR):
            self._output.add(rank, kind, payload)

    def is_told(self, rank: int, message: bytes) -> None:
        """Notes what the driver tells a rank."""
        if rank in self._logs:
            self._logs[rank].tell(message)

    def launcher_died(self) -> None:
        self.is_alone = True
        if self._holder:
            self._holder.close()
            self._holder = None
        self._alone_since = time.monotonic()
        self._alone_until = self._alone_since + self._limit

    def next_deadline(self) -> float:
        """Returns when to ask for `abandoned` and `to_kill` again, by time.monotonic."""
        waits = self._waits() if self.is_alone else {}
        return min([*waits.values(), *self._leave_by.values(), self._alone_until], default=NEVER)

    def is_over(self, now: float) -> bool:
        """Returns whether the ranks have gone on without a launcher for as long as they may; once.

        An agent cannot tell a launcher that was killed from a network that is cut. Nobody may know
        of ranks that go on beyond such a cut.
        """
        if now < self._alone_until:
            return False
        self._alone_until = NEVER
        return True

    def abandoned(self, now: float) -> list[int]:
        """Returns ranks that have waited in vain for another launcher; each once."""
        if not self.is_alone:
            return []
        ranks = [rank for rank, until in self._waits().items() if now >= until]
        for rank in ranks:
            self._leave_by[rank] = now + _SECONDS_TO_LEAVE
        return ranks

    def farewell(self) -> bytes:
        """Returns what such a rank is told."""
        why = (
            f"perseusrun was killed, and within {self._wait:g} s nobody has taken the job over "
            "(perseusrun --resume)"
        )
        return json.dumps({"says": "abandoned", "why": why}).encode()

    def to_kill(self, now: float) -> list[int]:
        """Returns ranks that were told so, and have not ended in time; each once."""
        ranks = [rank for rank, until in self._leave_by.items() if now >= until]
        for rank in ranks:
            del self._leave_by[rank]
        return ranks

    def _waits(self) -> dict[int, float]:
        return {
            rank: max(log.waits_since, self._alone_since) + self._wait
            for rank, log in self._logs.items()
            if log.waits_since is not None
        }

    # ---- Another launcher.

    def report(self) -> dict[str, Any]:
        return {
            "process": os.getppid(),  # the guardian, which leads the agent's session
            "ranks": [log.report(rank) for rank, log in self._logs.items()],
            "dropped": dict(self._output.dropped),
        }

    def begin_again(self, send: Callable[[int, int, bytes], None]) -> None:
        """Tells another launcher what has become of the ranks, and what they have written."""
        self.is_alone = False
        self._alone_until = NEVER
        send(protocol.REPORT, 0, json.dumps(self.report()).encode())
        for rank, kind, data in self._output.take():
            for begin in range(0, len(data), protocol.MOST_PAYLOAD_BYTES):
                send(kind, rank, data[begin : begin + protocol.MOST_PAYLOAD_BYTES])

    def close(self) -> None:
        """Takes the agent, which has no rank any more, out of the job's folder."""
        self._selector.unregister(self._listener)
        self._listener.close()
        if self.is_alone or self._is_elsewhere:
            has_finished = any(log.has_finished for log in self._logs.values())
            report = {
                **self.report(),
                "last_lines": self._output.last_lines(protocol.STDERR),
                "was_told_to_end": self._was_told_to_end,
            }
            if self._files and self.is_alone:
                self._output.write_to_files(*self._files)
            job_folder.leave_job_folder(
                self._folder, self._path, self._name, report, has_finished=has_finished
            )
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._name + job_folder.SOCKET, dir_fd=self._folder)
        os.close(self._folder)

    def _accept(self) -> None:
        try:
            caller, _ = self._listener.accept()
        except OSError:
            return
        if not job_folder.is_own_user(caller) or len(self._callers) >= _MOST_CALLERS:
            return caller.close()
        caller.setblocking(False)
        self._callers.append(caller)
        self._selector.register(caller, selectors.EVENT_READ, lambda: self._serve(caller))

    def _serve(self, caller: socket.socket) -> None:
        fds = array.array("i")
        try:
            room = socket.CMSG_SPACE(2 * fds.itemsize)
            message, extra, _, _ = caller.recvmsg(job_folder.LONGEST, room)
        except BlockingIOError:
            return
        except OSError:
            message, extra = b"", []
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        self._selector.unregister(caller)
        if message and self._obey(caller, message, list(fds)):
            return  # it waits until its connection ends
        for fd in fds:
            os.close(fd)
        self._callers.remove(caller)
        caller.close()

    def _obey(self, caller: socket.socket, message: bytes, fds: list[int]) -> bool:
        """Does what a caller says; returns whether that can be done.

        Then the descriptors are taken over, of which one that ends the ranks has none.
        """
        try:
            said = json.loads(message)
            secret = str(said["secret"])
            what = said["says"]
        except (ValueError, RecursionError, KeyError, TypeError):
            said, secret, what = None, "", None
        answer: dict[str, Any] = {}
        from hmac import compare_digest  # here, so that agents start quickly

        if not compare_digest(secret.encode(), self._secret.encode()):
            answer = {"error": "its agent does not know this secret"}
        elif not self.is_alone:
            answer = {"error": "its agent has its launcher still", "again": True}
        elif (what, len(fds)) not in (("take over", 2), ("end", 0)):
            answer = {"error": "its agent does not understand perseusrun; are both of a version?"}
        with contextlib.suppress(OSError):
            caller.send(json.dumps(answer or {"done": True}).encode())
        if answer:
            return False
        if what == "end":
            self._was_told_to_end = True
            self._end()  # and the connection ends with this process
        else:
            self._callers.remove(caller)
            self._holder = caller
            self._take_over(*fds)
        return True


def hand_over() -> None:
    """Hands our stdin and stdout, which are a launcher's, over to an agent that runs already.

    The launcher says first which agent that is; and perseusrun may say that it is to end. Returns
    once that has ended. Raises SystemExit, which says why, if it cannot be.
    """
    (length,) = struct.unpack("!I", _read(4))
    what = json.loads(_read(length))
    deadline = time.monotonic() + _SECONDS_TO_NOTICE
    message = {"says": what["says"], "secret": what["secret"]}
    fds = (0, 1) if what["says"] == "take over" else ()
    while True:
        try:
            folder = job_folder.open_job_folder(job_folder.path_of(what["folder"]))
            answer, caller = job_folder.call(folder, what["name"] + job_folder.SOCKET, message, fds)
        except (FileNotFoundError, ConnectionRefusedError):
            sys.exit(GONE)
        except OSError as error:
            sys.exit(f"its agent cannot be reached: {error.strerror or error}")
        if answer.get("done"):
            break
        caller.close()
        if not answer.get("again") or time.monotonic() >= deadline:
            sys.exit(answer.get("error", "its agent refuses"))
        os.close(folder)
        time.sleep(0.05)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nothing, fd)
    caller.settimeout(None)
    with contextlib.suppress(OSError):
        caller.recv(1)


def _read(length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = os.read(0, length - len(data))
        if not piece:
            sys.exit(0)  # the launcher has gone
        data += piece
    return data
