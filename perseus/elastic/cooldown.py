"""How long failed hosts and slots are kept out, by the rule of Horovod."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable

__all__ = ["Cooldowns", "check_cooldown_range"]

#: The limits of Horovod for a range, in seconds.
LOWEST_SECONDS, HIGHEST_SECONDS = 1, 3600


def check_cooldown_range(cooldown_range: tuple[float, float], name: str = "cooldown_range") -> None:
    """Raises ValueError for a range that is not one of seconds from 1 to 3600."""
    lower, upper = cooldown_range
    if not LOWEST_SECONDS <= lower <= upper <= HIGHEST_SECONDS:
        raise ValueError(
            f"{name} is {lower:g} {upper:g}; it must be two numbers of seconds from "
            f"{LOWEST_SECONDS} to {HIGHEST_SECONDS}, the smaller first"
        )


class Cooldowns:
    """What is kept out, and until when. Not thread-safe.

    The k-th time, k >= 1, lasts lower * 2**k + U(0, 1) * lower seconds, cut to the range. Without a
    range, it lasts for ever.
    """

    def __init__(
        self,
        cooldown_range: tuple[float, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        if cooldown_range is not None:
            check_cooldown_range(cooldown_range)
        self._range = cooldown_range
        self._clock = clock
        self._uniform = uniform
        self._times: Counter[Hashable] = Counter()
        self._ends: dict[Hashable, float] = {}

    def keep_out(self, what: Hashable) -> float:
        """Keeps it out from now on; returns for how many seconds. No change if it already is."""
        now = self._clock()
        if self._ends.get(what, -math.inf) <= now:
            self._times[what] += 1
            self._ends[what] = now + self._seconds(self._times[what])
        return self._ends[what] - now

    def holds(self, what: Hashable) -> bool:
        """Returns whether it is kept out: until `release` is called after its time is over."""
        return what in self._ends

    def release(self) -> None:
        """Lets in what has been kept out for its time."""
        now = self._clock()
        self._ends = {what: end for what, end in self._ends.items() if end > now}

    def next_end(self) -> float | None:
        """Returns when, by the clock, `release` has something to let in; None for never."""
        end = min(self._ends.values(), default=math.inf)
        return None if end == math.inf else end

    def saved(self) -> list[tuple[Hashable, int, float | None]]:
        """Returns what has ever been kept out, how often, and until when; as JSON has it.

        The clock must be the same for whoever restores it.
        """
        return [(what, times, self._ends.get(what)) for what, times in self._times.items()]

    def restore(self, saved: Iterable[tuple[Hashable, int, float | None]]) -> None:
        for what, times, end in saved:
            self._times[what] = times
            if end is not None:
                self._ends[what] = end

    def _seconds(self, times: int) -> float:
        if self._range is None:
            return math.inf
        lower, upper = self._range
        # 2**k soon exceeds what a float holds.
        seconds = lower * 2.0 ** min(times, 64) + self._uniform() * lower
        return min(max(seconds, lower), upper)
