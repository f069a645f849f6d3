"""Tests allreduces of ranks that are told to run under several caches (PERSEUS_CACHE_GROUPS), and
where the engine's thread is bound to (PERSEUS_THREAD_AFFINITY)."""

from __future__ import annotations

import os

import pytest
from conftest import RunRanks

#: Compares with float64, in all types and operations that a product of small numbers has room for.
SUMS = """
import os
os.environ["PERSEUS_CACHE_GROUPS"] = {groups!r}
os.environ["PERSEUS_ALLREDUCE_MODE"] = {mode!r}
import zlib
import numpy as np
import perseus_core as core

core.init()
rank, size = core.rank(), core.size()
references = {{
    core.ReduceOp.SUM: lambda x: x.sum(0),
    core.ReduceOp.AVERAGE: lambda x: x.mean(0),
    core.ReduceOp.MIN: lambda x: x.min(0),
    core.ReduceOp.MAX: lambda x: x.max(0),
    core.ReduceOp.PRODUCT: lambda x: x.prod(0),
}}
for dtype in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64"):
    for op, reference in references.items():
        if op == core.ReduceOp.AVERAGE and not dtype.startswith("float"):
            continue
        for elements in (5, 4099, 300007):
            inputs = np.stack(
                [(np.arange(elements) * (r + 2)) % 4 + (r % 2) for r in range(size)]
            ).astype(np.float64)
            if dtype.startswith("float"):
                inputs -= 1.75
            name = f"{{dtype}} {{op}} {{elements}}"
            found = core.allreduce(inputs[rank].astype(dtype), op=op, name=name)
            wanted = reference(inputs)
            error = np.abs(found.astype(np.float64) - wanted).max()
            allowed = {{"float16": 0.05, "float32": 1e-5}}.get(dtype, 1e-12)
            assert error <= allowed, (name, error)
            same = core.allgather(np.array([zlib.crc32(found)]), name="sum of " + name)
            assert (same == same[0]).all(), name
values = np.ones(1 << 16, np.float32)
core.barrier()
before = core.counters()
core.allreduce(values, name="counted")
after = core.counters()
frames, messages = (
    after[name] - before[name] for name in ("frames_sent", "control_messages_sent")
)
print("frames:", frames - messages)
core.shutdown()
"""


def frames(run_ranks: RunRanks, size: int, groups: str, mode: str = "auto") -> set[int]:
    """Returns how many frames each rank sends for an allreduce of 256 KiB."""
    result = run_ranks(size, SUMS.format(groups=groups, mode=mode))
    assert result.returncode == 0, result.stdout + result.stderr
    return {int(line.rpartition(":")[2]) for line in result.stdout.splitlines()}


def test_ranks_under_one_cache_reduce_first_among_themselves(run_ranks: RunRanks) -> None:
    # One to the neighbour, two across, and one to the neighbour; not three, and three more.
    assert frames(run_ranks, 4, "0,0,1,1") == {4}
    assert frames(run_ranks, 4, "0,1,0,1") == {4}
    assert frames(run_ranks, 4, "0,0,1,1", "flat") == {6}
    assert frames(run_ranks, 4, "") == {6}


@pytest.mark.parametrize(("size", "groups"), [(2, "0,1"), (3, "0,0,1"), (4, "0,0,0,1")])
def test_groups_that_are_no_two_levels_change_nothing(
    run_ranks: RunRanks, size: int, groups: str
) -> None:
    assert frames(run_ranks, size, groups) == {2 * (size - 1)}


def failure(run_ranks: RunRanks, **settings: str) -> str:
    script = f"import os; os.environ.update({settings}); import perseus_core; perseus_core.init()"
    result = run_ranks(2, script)
    assert result.returncode != 0
    return result.stderr


def test_groups_for_too_few_ranks_are_an_error(run_ranks: RunRanks) -> None:
    assert "there is no number in it for rank 1 on" in failure(run_ranks, PERSEUS_CACHE_GROUPS="0")


def test_groups_must_be_the_same_on_all_ranks(run_ranks: RunRanks) -> None:
    script = """
import os
os.environ["PERSEUS_CACHE_GROUPS"] = ["0,0", "0,1"][int(os.environ["PERSEUS_RANK"])]
import perseus_core
perseus_core.init()
"""
    result = run_ranks(2, script)
    assert "PERSEUS_CACHE_GROUPS is '0,1' on rank 1" in result.stderr


def test_malformed_placements_are_errors(run_ranks: RunRanks) -> None:
    assert "PERSEUS_CACHE_GROUPS='a' is malformed" in failure(run_ranks, PERSEUS_CACHE_GROUPS="a")
    assert "it takes auto, none, or numbers of processors from 0 on" in failure(
        run_ranks, PERSEUS_THREAD_AFFINITY="automatic"
    )


#: Prints where the engine's thread may run.
PLACE = """
import os
os.environ["PERSEUS_THREAD_AFFINITY"] = {affinity!r}
import perseus_core as core
core.init()
for thread in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{{thread}}/comm") as file:
        if file.read().strip() == "perseus":
            print(core.rank(), sorted(os.sched_getaffinity(int(thread))))
core.shutdown()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor only")
def test_the_engines_thread_runs_where_it_is_told_to(run_ranks: RunRanks) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    first, second = allowed[:2]

    def places(affinity: str) -> list[str]:
        result = run_ranks(2, PLACE.format(affinity=affinity))
        assert result.returncode == 0, result.stderr
        return sorted(line.rpartition(":")[2].strip() for line in result.stdout.splitlines())

    assert places(f"{second},{first}") == [f"0 [{second}]", f"1 [{first}]"]
    assert places("none") == [f"0 {allowed}", f"1 {allowed}"]
    half = len(allowed) // 2
    assert places("auto") == [f"0 {allowed[:half]}", f"1 {allowed[half:]}"]


def test_an_automatic_place_is_within_what_the_process_may_run_on(run_ranks: RunRanks) -> None:
    one = min(os.sched_getaffinity(0))
    script = f"import os; os.sched_setaffinity(0, [{one}])\n" + PLACE.format(affinity="auto")
    result = run_ranks(2, script)
    assert result.returncode == 0, result.stderr
    assert all(line.endswith(f"[{one}]") for line in result.stdout.splitlines())
