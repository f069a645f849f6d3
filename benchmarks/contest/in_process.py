"""Times what one process can do in several ways, which take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["print_times"]


def print_times(
    title: str,
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    reference: str,
    warm_up: int,
) -> None:
    """Prints the median of each contender in milliseconds, and its ratio to the reference's.

    The first `warm_up` rounds do not count. What a contender returns is freed when its time has
    been taken.
    """
    times: dict[str, list[float]] = {contender: [] for contender in contenders}
    for i in range(rounds + warm_up):
        for contender, work in contenders.items():
            began = time.perf_counter()
            kept = work()
            taken = time.perf_counter() - began
            del kept
            if i >= warm_up:
                times[contender].append(taken * 1e3)
    print(title)
    first = statistics.median(times[reference])
    width = max(map(len, times))
    for contender, of_contender in times.items():
        median = statistics.median(of_contender)
        least, most = min(of_contender), max(of_contender)
        print(
            f"  {contender:{width}} {median:7.1f} ms  ({least:.1f} to {most:.1f})"
            f"  {median / first:5.2f}"
        )
