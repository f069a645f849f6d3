"""A live rank that takes no part for as long as is allowed is given up, by name, on all ranks."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from conftest import RunRanks

#: Trains to step 30 in a loop that goes on with the ranks that are left; HANGS name ranks that take
#: no part after step 10, though their processes and engines live.
TRAINING = """
import os, time, numpy, perseus_core as core
launched, losses = int(os.environ["PERSEUS_RANK"]), int(os.environ["LOSSES"])
hangs = [int(rank) for rank in os.environ["HANGS"].split()]
step = 0
while step < 30:
    try:
        if not core.is_initialized(): core.init()
        if step == 10 and launched in hangs: time.sleep(1000)
        core.allreduce(numpy.ones(10), name=f"s{step}")
        step += 1
    except core.HorovodInternalError as error:
        print("error:", error, flush=True)
        if losses == 0: raise
        losses -= 1
        core.shutdown()
print("well", core.size(), flush=True)
"""


def run(
    run_ranks: RunRanks, ranks: int, program: str, *options: str, limit: int = 2, **settings: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PERSEUS_STALL_CHECK_TIME_SECONDS": "1",
        "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS": str(limit),
        "HANGS": "",
        "LOSSES": "2",
        **settings,
    }
    return run_ranks(ranks, program, options=options, environment=environment)


def errors_of(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The errors of all ranks, which are in the same words."""
    found = [line.partition("error: ")[2] for line in result.stdout.splitlines()]
    return [line for line in found if line]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_ranks_that_report_the_stall_go_on_without_the_one_that_hangs(
    run_ranks: RunRanks, ranks: int
) -> None:
    culprit = ranks // 2  # not always the last one
    result = run(run_ranks, ranks, TRAINING, "--min-np", "1", HANGS=str(culprit))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(f"well {ranks - 1}") == ranks - 1
    errors = errors_of(result)
    assert len(errors) == ranks - 1
    assert len(set(errors)) == 1, errors
    assert f"lost rank {culprit} on localhost: it takes no part" in errors[0]
    assert f"rank {culprit} last submitted 'allreduce.s9'" in errors[0]
    assert "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS" in errors[0]
    assert re.findall(r"given up on rank (\d)", result.stderr) == [str(culprit)]


def test_several_that_hang_are_given_up_together(run_ranks: RunRanks) -> None:
    result = run(run_ranks, 4, TRAINING, "--min-np", "2", HANGS="0 2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well 2") == 2
    errors = errors_of(result)
    assert len(errors) == 2 and len(set(errors)) == 1, errors
    assert "lost rank 0 on localhost and rank 2 on localhost: they take no part" in errors[0]
    assert sorted(re.findall(r"given up on rank (\d)", result.stderr)) == ["0", "2"]


def test_too_few_are_left_without_those_that_hang(run_ranks: RunRanks) -> None:
    result = run(run_ranks, 3, TRAINING, "--min-np", "2", HANGS="0 2")
    assert result.returncode != 0
    assert "too few ranks are left: 1 of at least 2" in result.stderr


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_without_the_option_the_rank_that_hangs_is_to_blame(
    run_ranks: RunRanks, ranks: int
) -> None:
    result = run(run_ranks, ranks, TRAINING, HANGS="1", LOSSES="0")
    assert result.returncode == 1
    assert "blaming rank 1, which is still running" in result.stderr
    assert len(set(errors_of(result))) == 1


#: The lower half of the ranks takes another branch than the others.
BRANCHES = """
import numpy, perseus_core as core
core.init()
name = "lower" if core.rank() < core.size() // 2 else "upper"
try:
    core.allreduce(numpy.ones(1), name=name)
except core.HorovodInternalError as error:
    print("error:", str(error).partition(": ")[2], flush=True)
    raise
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("options", [(), ("--min-np", "1")])
def test_two_sides_that_wait_for_each_other_are_both_named(
    run_ranks: RunRanks, ranks: int, options: tuple[str, ...]
) -> None:
    result = run(run_ranks, ranks, BRANCHES, *options)
    assert result.returncode == 1
    errors = errors_of(result)
    assert len(errors) == ranks and len(set(errors)) == 1, result.stdout + result.stderr
    lower = {2: "rank 0", 3: "rank 0", 4: "ranks 0, 1"}[ranks]
    upper = {2: "rank 1", 3: "ranks 1, 2", 4: "ranks 2, 3"}[ranks]
    sides = f"{lower} for 'allreduce.lower', {upper} for 'allreduce.upper'"
    assert f"the ranks wait for each other: {sides}" in errors[0]
    assert "given up on" not in result.stderr  # nobody is killed


#: Rank 1 waits in a process set for the last rank, which hangs, and the others wait for rank 1.
HELD_UP = """
import time, numpy, perseus_core as core
core.init()
last = core.size() - 1
pair = core.add_process_set([1, last])
try:
    if core.rank() == last: time.sleep(1000)
    if core.rank() == 1: core.allreduce(numpy.ones(1), name="of the pair", process_set=pair)
    core.allreduce(numpy.ones(1), name="of all")
except core.HorovodInternalError as error:
    print("error:", str(error).partition(": ")[2], flush=True)
    core.shutdown()
"""


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_rank_that_is_held_up_by_another_is_not_given_up(run_ranks: RunRanks, ranks: int) -> None:
    result = run(run_ranks, ranks, HELD_UP, "--min-np", "1", PERSEUS_DYNAMIC_PROCESS_SETS="1")
    errors = errors_of(result)
    assert len(errors) == ranks - 1 and len(set(errors)) == 1, result.stdout + result.stderr
    assert f"lost rank {ranks - 1} on localhost" in errors[0]
    assert re.findall(r"given up on rank (\d)", result.stderr) == [str(ranks - 1)]


#: All but the last rank have joined. That one goes on for twice the limit, and then hangs.
JOINED = """
import time, numpy, perseus_core as core
core.init()
try:
    if core.rank() == core.size() - 1:
        for i in range(20):
            core.allreduce(numpy.ones(1), name="alone")
            time.sleep(0.2)
        print("by itself", flush=True)
        time.sleep(1000)
    core.join()
except core.HorovodInternalError as error:
    print("error:", str(error).partition(": ")[2], flush=True)
    core.shutdown()
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_have_joined_do_not_wait_for_ever_either(
    run_ranks: RunRanks, ranks: int
) -> None:
    result = run(run_ranks, ranks, JOINED, "--min-np", "1")
    assert "by itself" in result.stdout, result.stdout + result.stderr
    errors = errors_of(result)
    assert len(errors) == ranks - 1 and len(set(errors)) == 1, result.stdout + result.stderr
    assert f"lost rank {ranks - 1} on localhost" in errors[0]
    assert "last submitted 'allreduce.alone'" in errors[0]


LIMIT = """
import perseus_core as core
core.init()
(limit,) = (row.value for row in core.settings() if "STALL_SHUTDOWN" in row.name)
print("limit", limit, flush=True)
"""


@pytest.mark.parametrize(("options", "limit"), [((), 0), (("--min-np", "1"), 600)])
def test_a_job_that_can_go_on_without_a_rank_has_a_limit_by_default(
    run_ranks: RunRanks, options: tuple[str, ...], limit: int
) -> None:
    result = run_ranks(2, LIMIT, options=options)
    assert result.returncode == 0, result.stderr
    assert re.findall(r"limit (\d+)", result.stdout) == [str(limit)] * 2


def test_the_limit_may_be_turned_off(run_ranks: RunRanks) -> None:
    options = ("--min-np", "1", "--stall-check-shutdown-time-seconds", "0")
    result = run_ranks(2, LIMIT, options=options)
    assert re.findall(r"limit (\d+)", result.stdout) == ["0", "0"], result.stderr
