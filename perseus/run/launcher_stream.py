"""An agent's end of the stream to its launcher: the agent's stdin and stdout.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
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

# How long a launcher may take to read the last words.
_SECONDS_TO_END = 3.0

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

    def send(self, kind: int, rank: int, payload: bytes) -> None:
        self.write(protocol.HEADER.pack(kind, rank, len(payload)), payload)

    def write(self, *pieces: bytes) -> None:
        rest = memoryview(self._session.sealer.seal(*pieces) if self._session else b"".join(pieces))
        while rest:
            try:
                rest = rest[os.write(sys.stdout.fileno(), rest) :]
            except OSError:
                return  # the launcher has gone; stdin ends, too

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

    def forget_received(self) -> None:
        """Drops the beginning of a command that a launcher has not sent whole."""
        self._received.clear()

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
        """Waits until something arrives, and yields the commands that have arrived whole.

        Each comes with its argument. END is the last.
        """
        data = self._read(LARGE_PIECE)
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
