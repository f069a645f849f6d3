"""The least time that a training step can take, whatever schedules its communication.

The model: the accelerator computes one layer after the other, forward and then backward; a layer's
gradient is there when its backward ends; a link moves it in so many seconds, one gradient at a
time, and may leave one for another at any moment, at no cost.

What a link must move comes from Patarasuk and Yuan 2009: for an allreduce of n bytes over H hosts,
each host sends at least 2 (H - 1) / H n, however many ranks it has.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def bytes_on_the_link(size: float, hosts: int) -> float:
    """What each host sends, at least, to reduce `size` bytes."""
    return 2 * (hosts - 1) / hosts * size


def completions(
    released: Sequence[float], lengths: Sequence[float], urgency: Sequence[float]
) -> list[float]:
    """When each job is done on one machine that always works on the most urgent one there is."""
    order = sorted(range(len(released)), key=lambda job: released[job])
    left = list(lengths)
    done = [0.0] * len(left)
    waiting: list[tuple[float, int]] = []
    now, next_release = 0.0, 0
    while waiting or next_release < len(order):
        if not waiting:
            now = max(now, released[order[next_release]])
        while next_release < len(order) and released[order[next_release]] <= now:
            job = order[next_release]
            heapq.heappush(waiting, (-urgency[job], job))
            next_release += 1
        _, job = waiting[0]
        until = released[order[next_release]] if next_release < len(order) else float("inf")
        if now + left[job] <= until:
            now += left[job]
            done[job] = now
            heapq.heappop(waiting)
        else:
            left[job] -= until - now
            now = until
    return done


def step_seconds(
    forward: Sequence[float], backward: Sequence[float], moving: Sequence[float], overlap: bool
) -> float:
    """The least period of steps: seconds of each layer in order of the forward pass.

    With overlap a layer's forward waits for its own gradient only: one machine, jobs with release
    dates and tails, for which serving the longest tail first is optimal (Jackson's rule; Horn
    1974). A job's tail is the rest of the forward pass, so the first layers go first. Steps don't
    meet on the link: backward begins when forward has ended, which has waited for all. Without
    overlap the next forward waits for all; then any order will do that never lets the link idle.
    """
    layers = range(len(forward))
    released = [sum(backward[layer:]) for layer in layers]
    tails = [sum(forward[layer:]) for layer in layers]
    done = completions(released, moving, tails)
    rest = tails if overlap else [tails[0]] * len(forward)
    return max(time + tail for time, tail in zip(done, rest, strict=True))
