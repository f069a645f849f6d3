"""Our own stdin on its way to rank 0."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable

#: So many bytes at most are under way to the rank. The rest stays where it comes from.
_WINDOW_BYTES = 256 << 10
_PIECE = 65536


class StdinFeed:
    """Reads a descriptor as fast as the rank does. Not thread-safe.

    It leaves a terminal alone in whose background we run, as the shell stops what reads there.

    Args:
      send: takes what was read; b"" at the end.
    """

    def __init__(
        self, fd: int, selector: selectors.BaseSelector, send: Callable[[bytes], None]
    ) -> None:
        self._fd = fd
        self._selector = selector
        self._send = send
        self._window = _WINDOW_BYTES
        self._is_open = True
        self._is_registered = False
        self.update()

    def taken(self, count: int) -> None:
        """Notes that the rank has read so many bytes; 0: it takes no more."""
        if count == 0:
            self.stop()
        self._window += count
        self.update()

    def stop(self) -> None:
        self._is_open = False
        self.update()

    def update(self) -> None:
        """Begins to read, or ceases. Also to be called when we go on after a stop (SIGCONT)."""
        reads = self._is_open and self._window > 0 and not self._is_in_background()
        if reads and not self._is_registered:
            try:
                self._selector.register(self._fd, selectors.EVENT_READ, self._read)
                self._is_registered = True
            except PermissionError:  # a file can always be read
                self._read_file()
        elif self._is_registered and not reads:
            self._selector.unregister(self._fd)
            self._is_registered = False

    def _read_file(self) -> None:
        while self._is_open and self._window > 0:
            self._take()

    def _read(self) -> None:
        if not self._is_in_background():
            self._take()
        self.update()

    def _take(self) -> None:
        # We may be put into the background at any moment; then this reading must be an error.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])
        try:
            data = os.read(self._fd, min(_PIECE, self._window))
        except BlockingIOError:
            return
        except OSError:
            if self._is_in_background():
                return
            data = b""  # a descriptor that cannot be read, or a terminal that has gone
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._window -= len(data)
        self._send(data)
        if not data:
            self._is_open = False

    def _is_in_background(self) -> bool:
        with contextlib.suppress(OSError):  # it is no terminal, or not ours
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        return False
