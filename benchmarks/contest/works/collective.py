"""Times one collective at a time, from call to result. `elements` is each rank's float32 count.

Each is checked first: rank r's input is r + 1 in every element.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from contest.works.check import require

WARM_UP = 2


def allreduce(contender: Any, *, iterations: int, elements: int, in_place: int = 1) -> list[float]:
    """A sum. in_place=0: into a new tensor, where the contender's interface has that."""
    buffer = contender.tensor(elements)
    contender.fill(buffer, contender.rank + 1)
    run = contender.allreduce if in_place else contender.allreduce_copy
    require(run(buffer), elements, _sum_of_ranks(contender))
    contender.fill(buffer, 0)
    return _timed(lambda: run(buffer), iterations)


def broadcast(contender: Any, *, iterations: int, elements: int) -> list[float]:
    """Broadcasts from rank 0. Its call may end before any other rank has data, so all start
    together."""
    buffer = contender.tensor(elements)
    contender.fill(buffer, contender.rank + 1)
    require(contender.broadcast(buffer), elements, 1)
    return _timed(lambda: contender.broadcast(buffer), iterations, before=contender.barrier)


def allgather(contender: Any, *, iterations: int, elements: int) -> list[float]:
    """`elements` is each rank's input."""
    buffer = contender.tensor(elements)
    contender.fill(buffer, contender.rank + 1)
    whole = elements * contender.size
    require(contender.allgather(buffer), whole, *_what_ranks_give(contender))
    return _timed(lambda: contender.allgather(buffer), iterations)


def alltoall(contender: Any, *, iterations: int, elements: int) -> list[float]:
    """`elements` is each rank's input, in equal parts for all ranks."""
    elements -= elements % contender.size
    buffer = contender.tensor(elements)
    contender.fill(buffer, contender.rank + 1)
    require(contender.alltoall(buffer), elements, *_what_ranks_give(contender))
    return _timed(lambda: contender.alltoall(buffer), iterations)


def reducescatter(contender: Any, *, iterations: int, elements: int) -> list[float]:
    """`elements` is each rank's input; each rank gets its part of the sum."""
    elements -= elements % contender.size
    buffer = contender.tensor(elements)
    contender.fill(buffer, contender.rank + 1)
    part = elements // contender.size
    require(contender.reducescatter(buffer), part, _sum_of_ranks(contender))
    return _timed(lambda: contender.reducescatter(buffer), iterations)


def sendrecv(contender: Any, *, iterations: int, elements: int) -> list[float]:
    """Each rank sends `elements` to the next one, all at once."""
    buffer = contender.tensor(elements)
    contender.fill(buffer, contender.rank + 1)
    previous = (contender.rank - 1) % contender.size
    require(contender.pass_round(buffer), elements, previous + 1)
    return _timed(lambda: contender.pass_round(buffer), iterations)


def barrier(contender: Any, *, iterations: int) -> list[float]:
    return _timed(contender.barrier, iterations)


def idle(contender: Any, *, iterations: int, pause: float = 1.0) -> list[float]:
    """Microseconds of CPU time of all threads in each second; `pause` is the length in seconds."""
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


def _what_ranks_give(contender: Any) -> range:
    return range(1, contender.size + 1)


def _sum_of_ranks(contender: Any) -> int:
    return sum(_what_ranks_give(contender))
