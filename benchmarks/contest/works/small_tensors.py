"""Processor time for each of a model's gradients, by part: the cost of small tensors.

Each iteration gives microseconds a tensor, the mean over all ranks: ranks share the processors, so
their total is what counts. `name` is the model's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from contest.models import model
from contest.works.step import declare

WARM_UP = 2


def step(contender: Any, *, iterations: int, name: str, part: str) -> list[float]:
    """Submits all gradients in turn, then waits for each. `part` selects what is timed:

    hand-over, finishing: this thread's processor time in the calls that start and in those that
    wait; engine: that of all other threads; wall: from the first call to the last result.
    """
    named = _zeros(contender, name)
    times = []
    for _ in range(WARM_UP + iterations):
        contender.barrier()
        wall, own, all_threads = time.perf_counter(), time.thread_time(), time.process_time()
        handles = [contender.allreduce_async(tensor, name, 0) for name, tensor in named]
        handed_over = time.thread_time()
        for handle in handles:
            contender.wait(handle)
        finished = time.thread_time()
        parts = {
            "hand-over": handed_over - own,
            "finishing": finished - handed_over,
            "engine": time.process_time() - all_threads - (finished - own),
            "wall": time.perf_counter() - wall,
        }
        times.append(parts[part])
    return _mean(contender, times[WARM_UP:], len(named))


def copy(contender: Any, *, iterations: int, name: str) -> list[float]:
    """Times a plain copy of all bytes, from one buffer to another."""
    elements, tensors = model(name).elements, len(model(name).tensors)
    source, target = contender.tensor(elements), contender.tensor(elements)

    def copied() -> None:
        target[:] = source

    return _mean(contender, [_thread_time(copied) for _ in range(iterations)], tensors)


def _thread_time(run: Callable[[], None]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def _zeros(contender: Any, name: str) -> list[tuple[str, Any]]:
    """Returns zero gradients in backward order, last one first; their sums stay zero."""
    named = []
    for tensor in reversed(model(name).tensors):
        zeros = contender.tensor(tensor.elements)
        contender.fill(zeros, 0)
        named.append((f"{name}.{tensor.name}", zeros))
    declare(contender, named[::-1])
    return named


def _mean(contender: Any, seconds: Sequence[float], tensors: int) -> list[float]:
    """Returns the mean over all ranks, in microseconds a tensor."""
    values = contender.tensor(len(seconds))
    for i, value in enumerate(seconds):
        values[i] = value
    contender.allreduce(values)
    return [float(value) * 1e6 / tensors / contender.size for value in values]
