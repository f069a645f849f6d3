"""The launcher's end of the connections to its agents."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from perseus.run import agent
from perseus.run import agent_protocol as protocol
from perseus.run.message_tags import Session
from perseus.run.rank_process import widen

JobDescription = dict[str, Any]  # sent to an agent as JSON

# -I and -S: the agent needs only the standard library, and so starts twice as fast.
AGENT = [sys.executable, "-I", "-S", os.path.abspath(agent.__file__)]


@dataclass(frozen=True)
class Frame:
    kind: int
    rank: int
    payload: bytes


class AgentConnection:
    """A connection to an agent, and the protocol on it. Never blocks. Not thread-safe."""

    def __init__(
        self,
        host: str,
        ranks: Sequence[int],
        stdin: IO[bytes],
        stdout: IO[bytes],
        job: JobDescription,
        payload: bytes = b"",
        session: Session | None = None,
    ):
        """`stdin` and `stdout` are those of the agent.

        Args:
          job: is sent to it, and after that `payload`, the input of each of its ranks.
          session: if nobody else, such as ssh, sees to it that what arrives is what was sent.
        """
        self.host = host
        self.ranks = ranks
        self.stdout = stdout
        self.ready = False  # whether the agent has answered
        self.ended = False  # whether the agent has closed its side
        self.stderr_tail = b""  # the end of its output outside the protocol
        self.given_up_because = ""
        self.blocked: Callable[[], None] = lambda: None  # is called when `flush` must be, later
        self._stdin = stdin
        self._is_broken = False  # whether the agent reads no more
        text = json.dumps({**job, "payload_bytes": len(payload)}).encode()
        # Views, so that a payload of gigabytes is copied for no agent and for no part of it.
        self._outgoing = deque([memoryview(struct.pack("!I", len(text)) + text)])
        if payload:
            self._outgoing.append(memoryview(payload))
        self._session = session
        self.received = 0  # how often something has come that is believed
        self._unsent = memoryview(b"")  # the rest of the piece that is being sent
        self._incoming = bytearray()
        for end in (stdin, stdout):
            os.set_blocking(end.fileno(), False)

    def flush(self) -> bool:
        """Sends what it can; returns whether something is left to send."""
        if self._is_broken or self._stdin.closed:
            return False
        try:
            while self._unsent or self._outgoing:
                if not self._unsent:
                    self._unsent = self._next_piece()
                self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent) :]
        except BlockingIOError:
            return True
        except OSError:  # the agent has ended, or its host has vanished
            self._send_no_more()
        return False

    def _next_piece(self) -> memoryview:
        """Takes what is to be sent next, as it is to be sent."""
        if self._session is None:
            return self._outgoing.popleft()
        piece = self._outgoing[0][: protocol.LARGE_PIECE]
        self._outgoing[0] = self._outgoing[0][len(piece) :]
        if not self._outgoing[0]:
            self._outgoing.popleft()
        return memoryview(self._session.sealer.seal(piece))

    def _send_no_more(self) -> None:
        self._is_broken = True
        self._outgoing.clear()
        self._unsent = memoryview(b"")

    @property
    def writable_fd(self) -> int:
        return self._stdin.fileno()

    @property
    def waiting_bytes(self) -> int:
        """Returns how much the agent has not taken of what it is to be sent."""
        return len(self._unsent) + sum(map(len, self._outgoing))

    def ask(self) -> None:
        """Has the agent say something."""
        self._tell(protocol.ASK)

    def terminate(self) -> None:
        """Tells the agent to end its ranks."""
        self._tell(protocol.TERMINATE)

    def kill(self, rank: int) -> None:
        """Tells the agent to kill one rank."""
        self._tell(protocol.KILL + protocol.RANK.pack(rank))

    def kill_all(self) -> None:
        """Tells the agent to kill its ranks and all that they have started, now."""
        self._tell(protocol.KILL_ALL)

    def hold(self, holds: bool) -> None:
        """Tells the agent to leave output in the ranks' pipes, or to send it on."""
        self._tell(protocol.HOLD if holds else protocol.GO_ON)

    def signal(self, number: int) -> None:
        """Tells the agent to send a signal to each of its ranks."""
        self._tell(protocol.SIGNAL + protocol.NUMBER.pack(number))

    def feed(self, data: bytes) -> None:
        """Gives the agent of rank 0 something for that rank's stdin, which ends with b""."""
        self._tell(protocol.INPUT + protocol.COUNT.pack(len(data)) + data)

    def tell(self, rank: int, message: bytes) -> None:
        """Gives a rank of an elastic job a message of the driver's."""
        self._tell(protocol.TELL + protocol.RANK_AND_COUNT.pack(rank, len(message)) + message)

    def _tell(self, command: bytes) -> None:
        self._outgoing.append(memoryview(command))
        if self.flush():
            self.blocked()

    def read(self) -> Iterator[Frame]:
        """Yields the frames that have arrived; sets `ended` at the end of the stream."""
        if self.ended:
            return
        try:
            data = os.read(self.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        except OSError as error:  # the host has vanished
            return self.give_up(error.strerror or str(error))
        if not data:
            self.ended = True
            self.read_stderr()  # its last output came before it closed its side
            return
        try:
            for piece in self._session.opener.open(data) if self._session else (data,):
                self.received += 1
                self._incoming += piece
                yield from self._take_incoming()
                if self.ended:
                    return
        except protocol.NotAuthenticError:
            self.give_up(f"what its agent said {protocol.NOT_AUTHENTIC}")

    def _take_incoming(self) -> Iterator[Frame]:
        if not self.ready:
            # The greeting of a login shell may come first.
            end_of_greeting = self._incoming.find(protocol.MAGIC)
            if end_of_greeting < 0:
                del self._incoming[: 1 - len(protocol.MAGIC)]
                return
            self.ready = True
            del self._incoming[: end_of_greeting + len(protocol.MAGIC)]
        yield from self._frames()

    def _frames(self) -> Iterator[Frame]:
        begin = 0
        while len(self._incoming) - begin >= protocol.HEADER.size:
            kind, rank, length = protocol.HEADER.unpack_from(self._incoming, begin)
            if length > protocol.MOST_PAYLOAD_BYTES:
                self.give_up(f"its agent announced {length} bytes at once")
                return
            end = begin + protocol.HEADER.size + length
            if len(self._incoming) < end:
                break
            with memoryview(self._incoming) as incoming:
                payload = bytes(incoming[begin + protocol.HEADER.size : end])
            begin = end
            if wrong := self._what_is_wrong(kind, rank, payload):
                self.give_up(f"its agent {wrong}")
                return
            yield Frame(kind, rank, payload)
        del self._incoming[:begin]

    def _what_is_wrong(self, kind: int, rank: int, payload: bytes) -> str:
        """Returns "" for a frame that an agent may send."""
        if kind in protocol.OF_RANKS and rank not in self.ranks:
            return f"spoke of rank {rank}, which it does not have"
        if (
            kind > protocol.DRAIN
            or (kind == protocol.EXIT and not _is_status(payload))
            or (kind == protocol.INPUT_TAKEN and len(payload) != protocol.COUNT.size)
        ):
            return f"sent nonsense (kind {kind}, {len(payload)} bytes)"
        return ""

    def give_up(self, why: str) -> None:
        """Reads no more. An agent that has called is hung up on, and then ends its ranks."""
        self.given_up_because = why
        self.ended = True
        if self._session:
            self._send_no_more()
            with socket.socket(fileno=os.dup(self.stdout.fileno())) as connection:
                with contextlib.suppress(OSError):  # the other end has closed it
                    connection.shutdown(socket.SHUT_RDWR)

    def read_stderr(self) -> bool:
        """Reads output outside the protocol; returns whether more may come."""
        return False

    def close(self, wait_seconds: float) -> None:
        """Closes the connection. The agent then ends all processes that are left."""
        self._stdin.close()
        self.stdout.close()


class HostConnection(AgentConnection):
    """A connection to the agent of a host, which `command` starts."""

    def __init__(
        self,
        host: str,
        ranks: Sequence[int],
        command: list[str],
        job: JobDescription,
        payload: bytes = b"",
    ):
        # In a session of its own, so that the terminal's Ctrl-C reaches the launcher only.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        super().__init__(host, ranks, self._process.stdin, self._process.stdout, job, payload)
        # The processes that are killed if the agent does not end: itself and its guardian.
        self.group = self._process.pid
        for end in (self._process.stdin, self._process.stdout):
            widen(end.fileno())
        self.stderr = self._process.stderr
        os.set_blocking(self.stderr.fileno(), False)

    def read_stderr(self) -> bool:
        """Reads what the agent, or ssh, has written to stderr."""
        try:
            while data := os.read(self.stderr.fileno(), 65536):
                self.stderr_tail = (self.stderr_tail + data)[-4096:]
        except BlockingIOError:
            return True
        return False

    def close(self, wait_seconds: float) -> None:
        super().close(wait_seconds)
        self.stderr.close()
        try:
            self._process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            for group in {self.group, self._process.pid}:
                # The command may be one that runs as another user.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            self._process.wait()


def _is_status(payload: bytes) -> bool:
    """Returns whether this is a number, as a process's status is."""
    return len(payload) < 12 and payload.removeprefix(b"-").isdigit()
