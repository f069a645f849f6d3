"""How far apart the processors are just now, which decides how fast the ranks of a host are.

A virtual machine's processors can be moved between caches at any time. So each case is measured
between two looks, and once more if they differ.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time

#: Distances that differ by more than this factor are different states of the machine.
_CHANGE = 1.5
#: Of many processors, these many are looked at, since it takes a millisecond for each two.
_MOST_PROCESSORS = 6
#: Below this many nanoseconds, processors are near each other: 27 to 40 under one cache, 75 to 155
#: in the other state.
_NEAR = 60.0
STATES = ("near", "far")


def add_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--distance",
        choices=STATES,
        help="measure while the processors are near each other, or far apart; waits for up to a "
        "minute until they are",
    )


def look() -> float | None:
    """Returns the median distance between two processors of this process, in nanoseconds.

    None if there is one processor only, or others compute there all the time.
    """
    import perseus_core  # not needed to draw what has been measured

    processors = sorted(os.sched_getaffinity(0))
    chosen = processors[:: -(-len(processors) // _MOST_PROCESSORS)]
    found = []
    for pair in itertools.combinations(chosen, 2):
        try:
            found.append(perseus_core.core_distance(*pair))
        except perseus_core.TimedOutError:
            continue
    return statistics.median(found) if found else None


def state_of(distance: float) -> str:
    return "near" if distance < _NEAR else "far"


class Wanted:
    """The state in which cases are to be measured, if any.

    The first case waits for it, for up to `patience` seconds. If it does not come, that is said,
    and later cases take the machine as it is.
    """

    def __init__(self, state: str | None = None, patience: float = 60.0) -> None:
        self._state = state
        self._patience = patience

    def wait(self) -> float | None:
        """Returns the distance as it is then."""
        began = time.monotonic()
        while True:
            distance = look()
            if self._state is None or distance is None or state_of(distance) == self._state:
                return distance
            if time.monotonic() - began >= self._patience:
                print(
                    f"the processors were not {self._state} within {self._patience:g} s: they are "
                    f"{distance:.0f} ns apart",
                    file=sys.stderr,
                    flush=True,
                )
                self._state = None
                return distance
            time.sleep(min(1.0, self._patience))


def has_changed(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return False
    return max(before, after) > _CHANGE * min(before, after)


def text(before: float | None, after: float | None) -> str:
    """Returns the words for a reader of a case: none, unless the distance has changed."""
    if before is None or after is None or not has_changed(before, after):
        return ""
    return f"the processors' distance went from {before:.0f} to {after:.0f} ns meanwhile"
