"""The sockets over which an agent hears from a rank, and tells it something.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import array
import os
import re
import socket
from collections import deque

_LONGEST = 1 << 20  # bytes of a message
#: What engines say: the name of their world, and words.
_NEWS = re.compile(rb"[0-9a-f]{32}(?: [0-9a-z]+)+")


class RankSocket:
    """One end of a pair of sockets whose other end a rank inherits, and all that it starts.

    Messages keep their borders. Never blocks.
    """

    def __init__(self) -> None:
        self._socket, self.other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        # So that an empty message, which has a sender, is told from the end.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def variables(self, number: str, inode: str) -> dict[str, str]:
        """Returns the variables of these names that tell a rank of the other end.

        The inode tells it from a descriptor that has got its number since.
        """
        fd = self.other_end.fileno()
        return {number: str(fd), inode: str(os.fstat(fd).st_ino)}

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self) -> bytes | None:
        """Returns one message; b"" in place of one that is too long; None at the end.

        Raises BlockingIOError if there is none.
        """
        try:
            message, extra, flags, _ = self._socket.recvmsg(_LONGEST, socket.CMSG_SPACE(64))
        except ConnectionResetError:  # the rank has ended, and has not read all
            return None
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for fd in array.array("i", data):
                    os.close(fd)
        if not message and not extra:
            return None
        return b"" if flags & socket.MSG_TRUNC else message


class NewsSocket(RankSocket):
    """Where an agent hears from a rank's engine what it reports on other ranks.

    What a rank has started may write there, too. Therefore the launcher judges whether an engine
    has said it (worlds.py).
    """

    def read(self) -> bytes | None:
        """Returns one message; b"" in place of one that no engine says; None at the end."""
        message = super().read()
        return b"" if message and not _NEWS.fullmatch(message) else message


class DriverSocket(RankSocket):
    """Carries what a rank of an elastic job and the driver say to each other."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[bytes] = deque()

    def write(self, message: bytes) -> None:
        """Has `flush` send the message. A rank that has ended gets nothing."""
        self._waiting.append(message)

    def tell_of_end(self) -> None:
        """Tells the rank that its job ends, so that SIGTERM is no request to leave the others."""
        self.write(b'{"says": "ending"}')
        self.flush()

    @property
    def is_behind(self) -> bool:
        """Returns whether something waits for room."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Sends what the rank has room for."""
        try:
            while self._waiting:
                self._socket.send(self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()
