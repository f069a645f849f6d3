"""Tags by which a launcher and its agent notice when somebody between them changes what they say.

What each sends is cut into records, and a record has two parts: its length, and its bytes. A MAC
follows each, under a key that only this connection and direction have, over a counter and the part.
So nobody can change, add, leave out, repeat or reorder records unnoticed, and no length is acted on
that is not proven. It hides nothing. (csrc/base/session.h does the same for the ranks.)

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run.agent_protocol import NotAuthenticError
else:  # in an agent, which is run by its path
    from agent_protocol import NotAuthenticError

#: A MAC of 128 bits, the first half of an HMAC (RFC 2104, section 5).
TAG_BYTES = 16
#: No record has more, so this bounds what is kept of one.
MOST_RECORD_BYTES = 2 << 20
_LENGTH = struct.Struct("!I")
_COUNTER = struct.Struct("!Q")


class _Tags:
    """The tags of one direction, one after the other."""

    def __init__(self, key: bytes):
        self._key = hmac.new(key, digestmod=hashlib.sha256)
        self._counter = 0

    def next(self, *pieces: bytes | memoryview) -> bytes:
        """Returns the tag of the next part, which consists of these pieces."""
        mac = self._key.copy()
        mac.update(_COUNTER.pack(self._counter))
        for piece in pieces:
            mac.update(piece)
        self._counter += 1
        return mac.digest()[:TAG_BYTES]


class Sealer:
    """Makes records of what this end sends."""

    def __init__(self, key: bytes):
        self._tags = _Tags(key)

    def seal(self, *pieces: bytes | memoryview) -> bytes:
        """Returns the next record. The pieces have MOST_RECORD_BYTES at most."""
        length = _LENGTH.pack(sum(map(len, pieces)))
        return b"".join((length, self._tags.next(length), *pieces, self._tags.next(*pieces)))


class Opener:
    """Takes the bytes out of the records that the other end sends."""

    def __init__(self, key: bytes):
        self._tags = _Tags(key)
        self._received = bytearray()
        self._awaited = _LENGTH.size  # bytes of the next part
        self._is_length = True  # whether that is a length
        self._is_broken = False

    def open(self, data: bytes) -> Iterator[bytes]:
        """Takes what has been received, and yields the bytes of each record that is whole.

        Raises NotAuthenticError, now and ever after, at the first record that is not the next one.
        """
        self._received += data
        while not self._is_broken and len(self._received) >= self._awaited + TAG_BYTES:
            part = self._take(self._awaited)
            tag = self._take(TAG_BYTES)
            if not hmac.compare_digest(tag, self._tags.next(part)):
                self._is_broken = True
            elif self._is_length:
                (self._awaited,) = _LENGTH.unpack(part)
                self._is_length = False
                self._is_broken = self._awaited > MOST_RECORD_BYTES
            else:
                self._awaited = _LENGTH.size
                self._is_length = True
                yield part
        if self._is_broken:
            self._received.clear()
            raise NotAuthenticError

    def _take(self, count: int) -> bytes:
        with memoryview(self._received) as received:
            taken = bytes(received[:count])
        del self._received[:count]
        return taken


class Session:
    """One end of a connection after the handshake.

    Args:
      secret: the two ends know it.
      transcript: all that both have said, with a challenge of each. An end that does not know the
        secret, or to which somebody has relayed other words, has other keys.
      mine, other: the roles of the ends.
    """

    def __init__(self, secret: bytes, transcript: bytes, mine: bytes, other: bytes):
        self.sealer = Sealer(_key_of(secret, transcript, mine))
        self.opener = Opener(_key_of(secret, transcript, other))


def _key_of(secret: bytes, transcript: bytes, sender: bytes) -> bytes:
    """The extract step and the expand step of HKDF (RFC 5869), with one block of output each."""
    extracted = hmac.digest(b"perseusrun session", secret, "sha256")
    return hmac.digest(extracted, b"messages of " + sender + transcript + b"\x01", "sha256")


def record_bytes(count: int) -> int:
    """Returns how long the record of so many bytes is."""
    return _LENGTH.size + TAG_BYTES + count + TAG_BYTES
