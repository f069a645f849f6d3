"""An agent's end of the stream to its launcher: the agent's stdin and stdout.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run import agent_protocol as protocol
    from perseus.run.agent_protocol import LARGE_PIECE
else:  # in an agent, which is run by its path
    import agent_protocol as protocol
    from agent_protocol import LARGE_PIECE
if TYPE_CHECKING:
    from perseus.run.message_tags import Session

# A launcher that takes nothing for so long gets no last words.
_SECONDS_TO_END = 3.0
# So much may wait for a launcher that takes less than it is sent.
_FULL_BYTES = LARGE_PIECE

#: The command that stands for the end of the stream.
END = b""
_ARGUMENTS = {
    protocol.KILL: protocol.RANK.size,
    protocol.SIGNAL: protocol.NUMBER.size,
    protocol.INPUT: protocol.COUNT.size,
    protocol.TELL: protocol.RANK_AND_COUNT.size,
}
#: Commands whose argument ends with a count, which as many bytes follow.
_COUNTED = (protocol.INPUT, protocol.TELL)


class LauncherStream:
    """Sends frames to the launcher, and receives a job and then commands from it.

    Whatever receives raises NotAuthenticError if somebody else has sent it.

    Args:
      session: if nobody else, such as ssh, sees to it that what arrives is what was sent.
    """

    def __init__(self, session: Session | None = None):
        self._session = session
        self._received = bytearray()
        self._selector: selectors.BaseSelector | None = None  # of an agent that never blocks
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        #: Whether the launcher takes less than it is sent, so that nothing should be sent that can
        #: wait.
        self.is_full = False
        self._taken_at = 0.0  # when the launcher last took something, or had nothing to take
        self._awaits_room = False
        self._is_broken = False  # whether the launcher has gone

    def never_block(self, selector: selectors.BaseSelector) -> None:
        """Sends from now on what there is room for, and the rest by the selector's callbacks.

        Commands come by the selector, too: on a connection, reading does not block any more either.
        """
        self._selector = selector
        os.set_blocking(sys.stdout.fileno(), False)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def stall_deadline(self) -> float:
        """Returns when, by time.monotonic, the launcher has taken nothing for too long."""
        return self._taken_at + _SECONDS_TO_END

    def send(self, kind: int, rank: int, payload: bytes) -> None:
        self.write(protocol.HEADER.pack(kind, rank, len(payload)), payload)

    def write(self, *pieces: bytes) -> None:
        if self._is_broken:
            return
        if not self._unsent:
            self._taken_at = time.monotonic()
        whole = self._session.sealer.seal(*pieces) if self._session else b"".join(pieces)
        self._unsent.append(memoryview(whole))
        self._unsent_bytes += len(whole)
        self._flush()

    def forget_unsent(self) -> None:
        """Drops what the launcher has not taken."""
        self._unsent.clear()
        self._unsent_bytes = 0
        self.is_full = False
        self._await_room(False)

    def _flush(self) -> None:
        try:
            while self._unsent:
                count = os.write(sys.stdout.fileno(), self._unsent[0])
                self._note_sent(count)
        except BlockingIOError:
            self._await_room(True)
        except OSError:  # the launcher has gone; stdin ends, too
            self._is_broken = True
            self.forget_unsent()
        else:
            self._await_room(False)
        if self._unsent_bytes > _FULL_BYTES:
            self.is_full = True
        elif self._unsent_bytes <= _FULL_BYTES // 4:
            self.is_full = False

    def _note_sent(self, count: int) -> None:
        self._taken_at = time.monotonic()
        self._unsent_bytes -= count
        self._unsent[0] = self._unsent[0][count:]
        if not self._unsent[0]:
            self._unsent.popleft()

    def _await_room(self, is_awaited: bool) -> None:
        if self._selector and is_awaited != self._awaits_room:
            self._awaits_room = is_awaited
            if is_awaited:
                self._selector.register(sys.stdout.fileno(), selectors.EVENT_WRITE, self._flush)
            else:
                self._selector.unregister(sys.stdout.fileno())

    def send_taken(self, count: int) -> None:
        self.send(protocol.INPUT_TAKEN, 0, protocol.COUNT.pack(count))

    def say_not_authentic(self, rank: int) -> None:
        """Says why the rank ends, or is not started."""
        message = f"what perseusrun said {protocol.NOT_AUTHENTIC}"
        self.send(protocol.ERROR, rank, message.encode())

    def end(self) -> None:
        """Lets the launcher read what was said last, before the connection is closed.

        A connection of TCP that is closed with something unread in it takes back what was sent.
        """
        deadline = time.monotonic() + _SECONDS_TO_END
        with contextlib.suppress(OSError):  # not a connection, or one that has ended
            with socket.socket(fileno=os.dup(sys.stdout.fileno())) as connection:
                connection.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([sys.stdin], [], [], left)[0]:
                    return
                if not os.read(sys.stdin.fileno(), LARGE_PIECE):
                    return

    def begin_again(self) -> None:
        """Goes on with another launcher, to which the one before has left nothing."""
        self._received.clear()
        self.forget_unsent()
        self._is_broken = False
        os.set_blocking(sys.stdout.fileno(), False)

    def receive(self, length: int) -> bytes:
        return b"".join(self._pieces(length))

    def receive_file(self, length: int) -> int:
        """Receives bytes into a new file that has no name, and returns its descriptor.

        It is in memory; before Linux 3.17, which lacks memfd_create, it is in the folder for
        temporary files.
        """
        try:
            file = os.memfd_create("perseus-stdin")
        except (AttributeError, OSError):
            import tempfile

            with tempfile.TemporaryFile() as temporary:
                file = os.dup(temporary.fileno())
        for piece in self._pieces(length):
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(file, rest) :]
        return file

    def commands(self) -> Iterator[tuple[bytes, bytes]]:
        """Takes what has arrived, and yields the commands that have arrived whole.

        Each comes with its argument. END is the last.
        """
        try:
            data = self._read(LARGE_PIECE)
        except BlockingIOError:
            return
        self._received += data or b""
        yield from self.waiting_commands()
        if data is None:
            yield END, b""

    def waiting_commands(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the commands that have arrived before."""
        while self._received:
            command = bytes(self._received[:1])
            end = 1 + _ARGUMENTS.get(command, 0)
            if command in _COUNTED and len(self._received) >= end:
                (count,) = protocol.COUNT.unpack_from(self._received, end - protocol.COUNT.size)
                end += count
            if len(self._received) < end:
                break
            argument = bytes(self._received[1:end])
            del self._received[:end]
            yield command, argument

    def _pieces(self, length: int) -> Iterator[bytes]:
        """Yields what the launcher sends, in all these many bytes."""
        while length:
            piece: bytes | None = bytes(self._received)
            self._received.clear()
            if not piece:
                piece = self._read(min(length, LARGE_PIECE))
            if piece is None:
                sys.exit(0)  # the launcher gave up before it sent a job
            self._received += piece[length:]
            piece = piece[:length]
            length -= len(piece)
            yield piece

    def _read(self, most: int) -> bytes | None:
        """Waits for something; returns None at the end, and b"" if nothing is whole yet."""
        try:
            data = os.read(sys.stdin.fileno(), most)
        except BlockingIOError:
            raise
        except OSError:  # the launcher's host has vanished
            return None
        if not data:
            return None
        return b"".join(self._session.opener.open(data)) if self._session else data
