"""The least time that a training step can take, for any schedule of its communication.

The model: the accelerator computes one layer after the other, forward and then backward. A layer's
gradient is available when its backward ends. A link moves it in a given time, one gradient at a
time, and may switch to another at any moment, at no cost.

The bytes a link must move come from Patarasuk and Yuan 2009: for an allreduce of n bytes over H
hosts, each host sends at least 2 (H - 1) / H n, for any number of ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def bytes_on_the_link(size: float, hosts: int) -> float:
    """Returns the least that each host sends to reduce `size` bytes."""
    return 2 * (hosts - 1) / hosts * size


def completions(
    released: Sequence[float], lengths: Sequence[float], urgency: Sequence[float]
) -> list[float]:
    """Returns when each job is done on one machine that always serves the most urgent ready job."""
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
    """Returns the least period of steps. Takes each layer's seconds, in forward order.

    With overlap a layer's forward waits for its own gradient only: one machine, jobs with release
    dates and tails, for which serving the longest tail first is optimal (Jackson's rule; Horn
    1974). A job's tail is the rest of the forward pass, so the first layers go first. Steps don't
    meet on the link: backward begins when forward has ended, and forward has waited for all
    gradients. Without overlap the next forward waits for all gradients; then any order is optimal
    that never lets the link idle.
    """
    layers = range(len(forward))
    released = [sum(backward[layer:]) for layer in layers]
    tails = [sum(forward[layer:]) for layer in layers]
    done = completions(released, moving, tails)
    rest = tails if overlap else [tails[0]] * len(forward)
    return max(time + tail for time, tail in zip(done, rest, strict=True))
