"""Where an agent hears from a rank's engine what it reports on other ranks.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import array
import os
import re
import socket

_LONGEST = 1 << 20  # bytes of a message
#: What engines say: the name of their world, and words.
_NEWS = re.compile(rb"[0-9a-f]{32}(?: [0-9a-z]+)+")


class NewsSocket:
    """One end of a pair of sockets whose other end a rank inherits, and all that it starts.

    Therefore the launcher judges whether an engine has said it (worlds.py).
    """

    def __init__(self) -> None:
        self._socket, self.other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        # So that an empty message, which has a sender, is told from the end.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    @property
    def other_inode(self) -> int:
        """Returns what tells the other end from a socket that has got its number since."""
        return os.fstat(self.other_end.fileno()).st_ino

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self) -> bytes | None:
        """Returns one message; b"" in place of one that no engine says; None at the end.

        Raises BlockingIOError if there is none.
        """
        message, extra, flags, _ = self._socket.recvmsg(_LONGEST, socket.CMSG_SPACE(64))
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for fd in array.array("i", data):
                    os.close(fd)
        if not message and not extra:
            return None
        is_news = not flags & socket.MSG_TRUNC and _NEWS.fullmatch(message)
        return message if is_news else b""
