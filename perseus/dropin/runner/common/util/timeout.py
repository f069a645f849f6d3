"""A time until which something must have happened."""

from __future__ import annotations

import time

__all__ = ["Timeout", "TimeoutException"]


class TimeoutException(Exception):
    def __init__(self, message: str):
        super().__init__(message)
        self.message = message


class Timeout:
    """`message` tells what did not happen in `timeout` seconds; it may name the {activity}."""

    def __init__(self, timeout: float, message: str):
        self._timeout = timeout
        self._message = message
        self._deadline = time.monotonic() + timeout

    def remaining(self) -> float:
        """Returns the seconds that are left, at least 0."""
        return max(0.0, self._deadline - time.monotonic())

    def timed_out(self) -> bool:
        return time.monotonic() > self._deadline

    def check_time_out_for(self, activity: str) -> None:
        """Raises TimeoutException if the time is over."""
        if self.timed_out():
            message = self._message.format(activity=activity).rstrip()
            stop = "" if message.endswith(".") else "."
            raise TimeoutException(f"{message}{stop} Timeout after {self._timeout} seconds.")
