"""How far apart the processors are just now, which decides how fast the ranks of a host are.

A virtual machine's processors can be moved between caches at any time. So each case is measured
between two looks, and once more if they differ.
"""

from __future__ import annotations

import itertools
import os
import statistics

#: Distances that differ by more than this factor are different states of the machine.
_CHANGE = 1.5
#: Of many processors, these many are looked at, since it takes a millisecond for each two.
_MOST_PROCESSORS = 6


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


def has_changed(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return False
    return max(before, after) > _CHANGE * min(before, after)


def text(before: float | None, after: float | None) -> str:
    """Returns the words for a reader of a case: none, unless the distance has changed."""
    if before is None or after is None or not has_changed(before, after):
        return ""
    return f"the processors' distance went from {before:.0f} to {after:.0f} ns meanwhile"
