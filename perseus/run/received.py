"""What a rank has sent to the caller of `perseus.run.run`, on its way into an object."""

from __future__ import annotations

import io
import mmap
from collections import deque
from typing import Any

import cloudpickle

_SEGMENT_BYTES = 16 << 20


class Received:
    """Collects bytes in segments that are never joined, since joining would copy gigabytes.

    Segments are mapped, so that the system has each back as soon as it is read. malloc might keep
    blocks of this size.
    """

    def __init__(self) -> None:
        self._segments: deque[mmap.mmap] = deque()
        self._in_last = _SEGMENT_BYTES  # how many bytes the last one holds

    def __bool__(self) -> bool:
        return bool(self._segments)

    def append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if self._in_last == _SEGMENT_BYTES:
                self._segments.append(mmap.mmap(-1, _SEGMENT_BYTES))
                self._in_last = 0
            fitting = min(len(rest), _SEGMENT_BYTES - self._in_last)
            self._segments[-1][self._in_last : self._in_last + fitting] = rest[:fitting]
            self._in_last += fitting
            rest = rest[fitting:]

    def unpickle(self) -> Any:
        """Returns the object. Its bytes are gone then, so that there is never a second copy."""
        return cloudpickle.load(io.BufferedReader(_Reader(self._segments, self._in_last)))


class _Reader(io.RawIOBase):
    """Reads segments, the last of which holds `in_last` bytes, and removes what has been read."""

    def __init__(self, segments: deque[mmap.mmap], in_last: int):
        self._segments = segments
        self._in_last = in_last
        self._position = 0  # in the first segment

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._segments:
            return 0
        end = self._in_last if len(self._segments) == 1 else _SEGMENT_BYTES
        piece = self._segments[0][self._position : min(end, self._position + len(buffer))]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        if self._position == end:
            self._segments.popleft().close()
            self._position = 0
        return len(piece)
