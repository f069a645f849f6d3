"""Where an agent hears from a rank's engine what it reports on other ranks.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run import processes
else:  # in an agent, which is run by its path
    import processes

_CREDENTIALS = struct.Struct("3i")  # process, user and group, which the kernel fills in
_LONGEST = 1 << 20  # bytes of a message


class NewsSocket:
    """One end of a pair of sockets whose other end a rank inherits, and all that it starts.

    Therefore the kernel tells which process each message is from, and only those of the process
    that holds the rank count. That need not be the process that the agent has started, as in
    `perseusrun sh -c 'python train.py'`: it is the one that says that it has met the others, which
    an engine says whenever a world begins. It keeps that place until it ends. A process that it has
    forked cannot take it; one that it descends from can, for then the descendant was no rank. Once
    the process that the agent has started has ended, which may be before its words are read, no
    other takes the place: what it leaves behind is no rank.
    """

    def __init__(self, rank: int):
        self._rank = rank
        self.process: int | None = None  # that the agent has started, as soon as it has
        self._socket, self.other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._speaker = 0  # the process that holds the rank
        self._speaker_began: int | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self) -> bytes | None:
        """Returns one message; b"" in place of one that does not count; None at the end.

        Raises BlockingIOError if there is none.
        """
        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        message, extra, flags, _ = self._socket.recvmsg(_LONGEST, space)
        sender = 0
        for level, kind, data in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                sender = _CREDENTIALS.unpack(data)[0]
            elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for fd in array.array("i", data):
                    os.close(fd)
        if not message and not sender:
            return None  # an empty message would have a sender
        if flags & socket.MSG_TRUNC or not sender:
            return b""
        return message if self._counts(sender, message) else b""

    def _counts(self, sender: int, message: bytes) -> bool:
        if sender == self._speaker and processes.began(sender) in (None, self._speaker_began):
            return True
        words = message.split()
        if words[:1] != [b"met"] or str(self._rank).encode() not in words:
            return False
        if self._speaker and sender != self.process and self._has_ended():
            return False
        began = processes.began(self._speaker)  # none has the number 0
        is_held = began is not None and began == self._speaker_began
        if is_held and not processes.is_ancestor(sender, self._speaker):
            return False
        self._speaker, self._speaker_began = sender, processes.began(sender)
        return True

    def _has_ended(self) -> bool:
        return self.process is not None and processes.began(self.process) is None
