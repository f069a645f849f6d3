"""How far apart the processors of this host are, as `perseusrun --core-distances` shows it."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

#: Nanoseconds by two processors, the lower first.
Distances = Mapping[tuple[int, int], float]
#: Processors that are this many times as far apart as the nearest two do not share their cache.
_FAR = 2.0
_WIDEST_TABLE = 16


def measure(processors: Sequence[int]) -> dict[tuple[int, int], float]:
    """Takes a millisecond for each two processors; shows how far it is if that is over a second.

    Leaves out two of them between which nothing could be measured, since others compute there.
    """
    import perseus_core

    pairs = list(itertools.combinations(processors, 2))
    is_shown = len(pairs) > 1000 and sys.stderr.isatty()
    found = {}
    for number, pair in enumerate(pairs):
        if is_shown and number % 50 == 0:
            print(f"\rmeasuring: {100 * number // len(pairs)} %", end="", file=sys.stderr)
        try:
            found[pair] = perseus_core.core_distance(*pair)
        except perseus_core.TimedOutError:
            continue
    if is_shown:
        print("\r" + " " * 20, end="\r", file=sys.stderr)
    return found


def groups(processors: Sequence[int], distances: Distances) -> list[list[int]]:
    """Returns the processors in groups that are near each other, by their lowest numbers."""
    nearest = min(distances.values(), default=0.0)
    found: list[list[int]] = []
    for processor in processors:
        near = [
            group
            for group in found
            if any(distances.get((one, processor), math.inf) < _FAR * nearest for one in group)
        ]
        joined = sorted(itertools.chain([processor], *near))
        found = sorted([*(group for group in found if group not in near), joined])
    return found


def lines(processors: Sequence[int], distances: Distances) -> list[str]:
    """Returns a table, if there are few processors, and a line for each group."""
    if len(processors) < 2:
        return ["This process may run on one processor only."]
    text = ["Nanoseconds until a cache line that one processor has written is at another:"]
    if len(processors) <= _WIDEST_TABLE:
        text += _table(processors, distances)
    near = groups(processors, distances)
    if len(near) == 1:
        return [*text, f"All are near each other: {_span(distances.values())}."]
    where = {processor: number for number, group in enumerate(near) for processor in group}
    for group in near:
        inside = [distances[pair] for pair in itertools.combinations(group, 2) if pair in distances]
        text.append(f"Near each other: {_ranges(group)}" + (f", {_span(inside)}" if inside else ""))
    between = [value for (one, other), value in distances.items() if where[one] != where[other]]
    return [*text, f"From group to group: {_span(between)}."]


def show() -> int:
    """Prints the distances between all processors that this process may run on."""
    processors = sorted(os.sched_getaffinity(0))
    print("\n".join(lines(processors, measure(processors))), flush=True)
    return 0


def _table(processors: Sequence[int], distances: Distances) -> list[str]:
    def cell(one: int, other: int) -> str:
        value = distances.get((min(one, other), max(one, other)))
        return f"{'-' if value is None else round(value):>5}"

    head = " " * 5 + "".join(f"{other:>5}" for other in processors)
    rows = (f"{one:>5}" + "".join(cell(one, other) for other in processors) for one in processors)
    return [head, *rows]


def _span(values: Iterable[float]) -> str:
    numbers = sorted(map(round, values))
    if not numbers:
        return "not measured"
    return " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1])))) + " ns"


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"."""
    found = []
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        ends = dict.fromkeys((members[0], members[-1]))
        found.append("-".join(map(str, ends)))
    return ", ".join(found)
