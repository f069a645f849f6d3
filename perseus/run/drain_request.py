"""SIGTERM to the agent of an elastic job: its ranks finish their step and leave.

A batch system or a cloud that takes a host back sends SIGTERM to all processes there. A second one
ends the ranks, as does the first in other jobs, and when the agent's guardian has been killed.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import os
import time

# The guardian passes on a SIGTERM that the agent has got itself; so late it may come.
_SECONDS_OF_ONE = 3.0


class DrainRequest:
    """A handler of signals may call `take_sigterm`.

    Args:
      seconds: until ranks are ended that have not left; None if SIGTERM ends them at once.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._guardian = os.getppid()
        self._since: float | None = None
        self._is_passed_on = False

    def take_sigterm(self) -> bool:
        """Takes it for a request; returns False if it is to end the ranks."""
        if self._seconds is None or os.getppid() != self._guardian:
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now < self._since + _SECONDS_OF_ONE

    def must_be_passed_on(self) -> bool:
        """Returns whether the launcher is to be told now; only once."""
        is_new = self._since is not None and not self._is_passed_on
        self._is_passed_on |= is_new
        return is_new

    def deadline(self) -> float | None:
        """Returns when ranks that have not left are ended, by time.monotonic; None for never."""
        if self._since is None or self._seconds is None:
            return None
        return self._since + self._seconds
