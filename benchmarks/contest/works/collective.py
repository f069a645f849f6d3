"""One collective at a time, from the call to the result. `elements` are each rank's float32.

Each is checked first, with numbers whose result is known: a fast wrong answer is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WARM_UP = 2


def allreduce(contender: Any, *, iterations: int, elements: int, in_place: int = 1) -> list[float]:
    """A sum. in_place=0: into a new tensor, where the contender's interface has that."""
    buffer = contender.tensor(elements)
    contender.fill(buffer, contender.rank + 1)
    run = contender.allreduce if in_place else contender.allreduce_copy
    _check(contender, run(buffer), elements, _sum_of_ranks(contender))
    contender.fill(buffer, 0)
    return _timed(lambda: run(buffer), iterations)


def broadcast(contender: Any, *, iterations: int, elements: int) -> list[float]:
    """From rank 0, whose call may end before the data is anywhere: so all begin together."""
    buffer = contender.tensor(elements)
    contender.fill(buffer, contender.rank + 1)
    _check(contender, contender.broadcast(buffer), elements, 1)
    return _timed(lambda: contender.broadcast(buffer), iterations, before=contender.barrier)


def allgather(contender: Any, *, iterations: int, elements: int) -> list[float]:
    """`elements` is what each rank gives."""
    buffer = contender.tensor(elements)
    contender.fill(buffer, 1)
    _check(contender, contender.allgather(buffer), elements * contender.size, 1)
    return _timed(lambda: contender.allgather(buffer), iterations)


def alltoall(contender: Any, *, iterations: int, elements: int) -> list[float]:
    """`elements` is what each rank gives, in equal parts for each other."""
    elements -= elements % contender.size
    buffer = contender.tensor(elements)
    contender.fill(buffer, 1)
    _check(contender, contender.alltoall(buffer), elements, 1)
    return _timed(lambda: contender.alltoall(buffer), iterations)


def reducescatter(contender: Any, *, iterations: int, elements: int) -> list[float]:
    """`elements` is what each rank gives; it gets its part of the sum."""
    elements -= elements % contender.size
    buffer = contender.tensor(elements)
    contender.fill(buffer, contender.rank + 1)
    part = contender.reducescatter(buffer)
    _check(contender, part, elements // contender.size, _sum_of_ranks(contender))
    return _timed(lambda: contender.reducescatter(buffer), iterations)


def idle(contender: Any, *, iterations: int, pause: float = 1.0) -> list[float]:
    """Microseconds of CPU time, of all threads, in each second of a pause, in seconds."""
    contender.barrier()
    times = []
    for _ in range(iterations):
        began = time.process_time()
        time.sleep(pause)
        times.append((time.process_time() - began) * 1e6 / pause)
    return times


def _timed(
    run: Callable[[], object], iterations: int, before: Callable[[], object] | None = None
) -> list[float]:
    times = []
    for _ in range(WARM_UP + iterations):
        if before is not None:
            before()
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1e6)
    return times[WARM_UP:]


def _sum_of_ranks(contender: Any) -> int:
    return contender.size * (contender.size + 1) // 2


def _check(contender: Any, result: Any, elements: int, expected: float) -> None:
    first, last, count = float(result[0]), float(result[-1]), len(result)
    if (first, last, count) != (expected, expected, elements):
        found = f"{count} elements from {first} to {last}"
        raise ArithmeticError(f"wrong result: {found}, not {elements} of {expected}")
