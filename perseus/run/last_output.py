"""What is left to write when all ranks have ended."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable

from perseus.run.bounded_writer import NEVER, PATIENCE_SECONDS
from perseus.run.output import Output
from perseus.run.signals import ENDING, ReceivedSignals


class LastOutput:
    """Waits for the readers of our output, for as long as docs/launching.md says.

    Args:
      has_failed: the job has. Then a reader is waited for only as long as it reads.
    """

    def __init__(self, output: Output, signals: ReceivedSignals, *, has_failed: bool):
        self._output = output
        self._signals = signals
        self._has_failed = has_failed
        self._hurried_until = NEVER
        self._signal: int | None = None  # that has come meanwhile

    def write(self, *, is_hurried: bool) -> int | None:
        """Writes what is left, and says what is dropped. Returns the signal that has ended this.

        Args:
          is_hurried: a signal has ended the job already.
        """
        writers = self._output.writers
        writers.await_all()
        if is_hurried:
            self._hurry()
        with selectors.DefaultSelector() as selector:
            writers.register(selector)
            self._signals.register(selector)
            self._wait(selector, lambda: writers.waiting == 0, self._deadline)
            losses = writers.losses()  # not of what is said from now on
            self._output.take_errors()  # a writer may have failed since
            for loss in losses:
                self._output.say(f"perseusrun: {loss}")
            soon = time.monotonic() + PATIENCE_SECONDS
            self._wait(selector, lambda: not self._output.is_stuck("stderr"), lambda: soon)
        return self._signal

    def _hurry(self) -> None:
        self._hurried_until = min(self._hurried_until, time.monotonic() + PATIENCE_SECONDS)

    def _deadline(self) -> float:
        is_patient = not self._has_failed and self._hurried_until == NEVER
        stalls_at = NEVER if is_patient else self._output.writers.last_stall()
        return min(stalls_at, self._hurried_until)

    def _wait(
        self,
        selector: selectors.BaseSelector,
        is_written: Callable[[], bool],
        deadline: Callable[[], float],
    ) -> None:
        while not is_written() and not self._output.reader_is_gone:
            for number in self._signals.take():
                if number in ENDING:
                    self._signal = number
                    self._hurry()
            seconds = deadline() - time.monotonic()
            if seconds <= 0:
                return
            for key, _ in selector.select(None if seconds == NEVER else seconds):
                key.data()
            self._output.take_errors()
