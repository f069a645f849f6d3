"""A pipe between two threads."""

from __future__ import annotations

import threading
from typing import AnyStr, Generic

__all__ = ["Pipe"]


class Pipe(Generic[AnyStr]):
    """Passes text, or bytes, from threads that write to threads that read.

    It holds what one call of `write` has written; the next call waits until that has been read.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: AnyStr | None = None
        self._closed = False

    def write(self, buf: AnyStr) -> None:
        """Waits until there is room. RuntimeError if the pipe is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._held is None or self._closed)
            if self._closed:
                raise RuntimeError("the pipe is closed; nothing can be written to it")
            self._held = buf
            self._changed.notify_all()

    def read(self, length: int = -1) -> AnyStr | None:
        """Waits for data; returns `length` of it at most, or None at the end of a closed pipe."""
        with self._changed:
            self._changed.wait_for(lambda: self._held is not None or self._closed)
            held = self._held
            if held is None:
                return None
            if 0 < length < len(held):
                self._held = held[length:]
                return held[:length]
            self._held = None
            self._changed.notify_all()
            return held

    def flush(self) -> None:
        """Has nothing to do, because nothing is held back; streams of text have it."""

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
