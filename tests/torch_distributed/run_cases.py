"""run_cases.py BACKEND FOLDER [CASE...]: runs the table of cases as one rank of a job.

Each rank writes a line of JSON for each case into FOLDER, before it begins and when it has ended.
Ranks meet through the store between two cases, so that they stay in step whatever becomes of one.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from case import Case, Place, outcome
from differences import HANG_IN_OLDER, is_older
from table import CASES, TIME_OUTS

import perseus.torch  # noqa: F401  registers the backend

#: Longer than any case takes, and shorter than a job may.
LIMIT = timedelta(seconds=40)


class Steps:
    """Brings ranks together between cases, without the backend."""

    def __init__(self, store: Any, size: int) -> None:
        self._store = store
        self._size = size
        self._number = 0

    def meet(self) -> None:
        self._number += 1
        here, all_here = f"step/{self._number}", f"all/{self._number}"
        if self._store.add(here, 1) == self._size:
            self._store.set(all_here, "1")
        self._store.wait([all_here], LIMIT)


def runs(case: Case, places: dict[str, Place]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the ways to run a case, by name."""
    if not case.collective:
        yield case.name, functools.partial(case.body, places["the world"])
        return
    for where, place in places.items():
        for later in (False, True):
            how = {"group": place.group, "async_op": later}
            name = f"{case.name}, in {where}{', waiting later' if later else ''}"
            yield name, functools.partial(case.body, place, **how)


def main(backend: str, folder: str, *wanted: str) -> None:
    warnings.simplefilter("ignore")  # about functions that are deprecated
    dist.init_process_group(backend, timeout=LIMIT)
    rank, size = dist.get_rank(), dist.get_world_size()
    some = tuple(range(1, size))
    places = {
        "the world": Place(rank, tuple(range(size)), None),
        "a group": Place(rank, some, dist.new_group(some)),
    }
    steps = Steps(dist.PrefixStore("cases", dist.distributed_c10d._get_default_store()), size)
    with Path(folder, f"{rank}.jsonl").open("w", buffering=1) as file:
        for case in (*CASES, *TIME_OUTS):
            for name, body in runs(case, places):
                if wanted and case.covers not in wanted and name not in wanted:
                    continue
                if is_older() and name in HANG_IN_OLDER:
                    continue
                steps.meet()
                file.write(json.dumps([name, "begun"]) + "\n")
                file.write(json.dumps([name, outcome(body)]) + "\n")
        steps.meet()
    # Some groups have timed out, and are not to be destroyed in good order.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
