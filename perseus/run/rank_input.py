"""The stdin of a rank, into which an agent writes what the launcher reads.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable


class RankInput:
    """Writes to a pipe as the rank reads it. The launcher sees to it that little waits here.

    Args:
      taken: is called with the number of bytes that have been written; with 0 once the rank takes
        no more.
    """

    def __init__(self, selector: selectors.BaseSelector, taken: Callable[[int], None]):
        self._selector = selector
        self._taken = taken
        self.read_end, self._fd = os.pipe()
        os.set_blocking(self._fd, False)
        self._queue = bytearray()
        self._is_ended = False
        self._is_open = True
        self._is_awaited = False

    def write(self, data: bytes) -> None:
        """Writes the data as soon as there is room; no data is the end of the rank's stdin."""
        self._queue += data
        self._is_ended = self._is_ended or not data
        if self._is_open:
            self._flush()

    def close(self) -> None:
        if self._is_open:
            self._await_room(False)
            os.close(self._fd)
            self._is_open = False

    def _flush(self) -> None:
        try:
            while self._queue:
                written = os.write(self._fd, self._queue)
                del self._queue[:written]
                self._taken(written)
        except BlockingIOError:
            self._await_room(True)
        except OSError:  # the rank has closed its stdin, or has ended
            self.close()
            self._taken(0)
        else:
            self._await_room(False)
            if self._is_ended:
                self.close()

    def _await_room(self, is_awaited: bool) -> None:
        if is_awaited == self._is_awaited:
            return
        self._is_awaited = is_awaited
        if is_awaited:
            self._selector.register(self._fd, selectors.EVENT_WRITE, self._flush)
        else:
            self._selector.unregister(self._fd)
