"""The signals that the launcher handles."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
from collections.abc import Iterator

#: These end the job.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: With these, batch systems warn a job before they end it. The ranks get them.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class ReceivedSignals:
    """Keeps the signals that have come until a loop of events takes them."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._wakeup_fd: int | None = None

    @contextlib.contextmanager
    def handling(self, selector: selectors.BaseSelector) -> Iterator[None]:
        """Handles signals meanwhile, of which the selector tells; only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._wakeup_fd, write = os.pipe()
        for end in (self._wakeup_fd, write):
            os.set_blocking(end, False)
        self.register(selector)
        before = {
            number: signal.signal(number, lambda number, _: self._numbers.append(number))
            for number in (*ENDING, *PASSED_ON, signal.SIGCONT)
        }
        wakeup_before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wakeup_fd)
            os.close(write)
            self._wakeup_fd = None

    def register(self, selector: selectors.BaseSelector) -> None:
        """Has another selector tell of signals, too."""
        if self._wakeup_fd is not None:
            selector.register(self._wakeup_fd, selectors.EVENT_READ, self._take_wakeups)

    def take(self) -> list[int]:
        """Returns the signals that have come since the last call."""
        numbers = []
        while self._numbers:
            numbers.append(self._numbers.pop(0))
        return numbers

    def _take_wakeups(self) -> None:
        assert self._wakeup_fd is not None
        os.read(self._wakeup_fd, 4096)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
