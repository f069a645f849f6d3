"""Tests that a slow rank is reported by name, and that the job goes on or is ended."""

from __future__ import annotations

import os
import re

import pytest
from conftest import RunRanks

#: Rank 2 comes late, by LATE seconds; meanwhile it has submitted `another`.
LATE = """
import os, time, numpy
import perseus_core as core
core.init()
if core.rank() == 2:
    another = core.allreduce_async(numpy.ones(1), name="another")
    time.sleep(float(os.environ["LATE"]))
handles = [core.allreduce_async(numpy.ones(1), name=f"lonely.{i}") for i in range(3)]
if core.rank() != 2:
    time.sleep(0.1)
    another = core.allreduce_async(numpy.ones(1), name="another")
for handle in [*handles, another]:
    try:
        handle.wait()
    except core.HorovodInternalError as error:
        print("error:", error, flush=True)
        raise SystemExit(3)
time.sleep(1)
"""


def run(run_ranks: RunRanks, late: float, **settings: str) -> tuple[int, str, str]:
    environment = {**os.environ, "LATE": str(late), **settings}
    result = run_ranks(3, LATE, environment=environment)
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize(
    "name", ["PERSEUS_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS"]
)
def test_every_rank_reports_who_is_missing_and_that_it_has_come(
    run_ranks: RunRanks, name: str
) -> None:
    code, _, errors = run(run_ranks, 3.5, **{name: "1"})
    assert code == 0, errors
    for rank in (0, 1):
        mine = [line for line in errors.splitlines() if line.startswith(f"[{rank}]<stderr>:")]
        text = "\n".join(mine)
        assert re.search(r"3 tensors wait for ranks that have not submitted them", text), errors
        assert re.search(
            r"'allreduce.lonely.1' \(\d s\): missing on rank 2; ready on ranks 0, 1", text
        )
        assert "rank 2 last submitted 'allreduce.another'" in text
        # As soon as rank 2 has come.
        found = re.search(r"no longer stalled: 'allreduce.lonely.0' \(after (\d) s\)", text)
        assert found, errors
        assert found[1] == "3"
    missing = [line for line in errors.splitlines() if line.startswith("[2]<stderr>:")]
    assert any(
        re.search(
            r"this rank has not submitted 'allreduce.lonely.0' and 2 more, for which rank [01] "
            r"\(and perhaps others\) has waited for 1 s; its last submission is "
            r"'allreduce.another'",
            line,
        )
        for line in missing
    ), errors


def test_a_rank_that_is_late_by_less_is_nothing_to_report(run_ranks: RunRanks) -> None:
    code, _, errors = run(run_ranks, 1, PERSEUS_STALL_CHECK_TIME_SECONDS="3")
    assert code == 0
    assert "wait for ranks" not in errors


@pytest.mark.parametrize("name", ["PERSEUS_STALL_CHECK_DISABLE", "HOROVOD_STALL_CHECK_DISABLE"])
def test_no_reports_where_they_are_turned_off(run_ranks: RunRanks, name: str) -> None:
    code, _, errors = run(run_ranks, 2.5, PERSEUS_STALL_CHECK_TIME_SECONDS="1", **{name: "1"})
    assert code == 0
    assert "lonely" not in errors


@pytest.mark.parametrize("prefix", ["PERSEUS", "HOROVOD"])
def test_a_stall_ends_the_job_where_that_is_asked_for(run_ranks: RunRanks, prefix: str) -> None:
    settings = {
        f"{prefix}_STALL_CHECK_TIME_SECONDS": "1",
        f"{prefix}_STALL_SHUTDOWN_TIME_SECONDS": "2",
    }
    code, said, errors = run(run_ranks, 30, **settings)
    assert code != 0
    told = [line for line in said.splitlines() if "error:" in line]
    assert len(told) >= 2, errors
    for line in told:
        assert "missing on rank 2; ready on ranks 0, 1" in line
        assert "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS" in line


#: Rank 1 misses one of several operations, which the others submit one after the other.
FIRST_STEP = """
import os, threading, time, numpy
import perseus_core as core
core.init()
began = time.monotonic()
if core.rank() != 1:
    early = core.allreduce_async(numpy.ones(1), name="early")
    time.sleep(0.2)
handle = core.allreduce_async(numpy.ones(1), name="both") if core.rank() != 1 else None
if core.rank() == 1:
    early = core.allreduce_async(numpy.ones(1), name="early")
    time.sleep(3.2)
    handle = core.allreduce_async(numpy.ones(1), name="both")
early.wait()
handle.wait()
"""


def test_the_first_report_comes_in_time(run_ranks: RunRanks) -> None:
    """The report also covers a tensor submitted just after one that was never late."""
    environment = {**os.environ, "PERSEUS_STALL_CHECK_TIME_SECONDS": "2"}
    result = run_ranks(3, FIRST_STEP, environment=environment)
    assert result.returncode == 0, result.stderr
    found = re.findall(r"tensor waits for ranks .*, for (\d) s by now", result.stderr)
    assert found == ["2", "2"], result.stderr


SETS = """
import os, time, numpy
import perseus_core as core
core.init()
odd = core.add_process_set([1, 2])
if core.rank() == 1:
    core.allreduce(numpy.ones(1), name="x", process_set=odd)
elif core.rank() == 2:
    alone = core.allreduce_async(numpy.ones(1), name="alone", process_set=odd)
    core.allreduce_async(numpy.ones(1), name="x", process_set=odd)
    time.sleep(2.5)
if core.rank() == 1:
    time.sleep(2.5)
    core.allreduce(numpy.ones(1), name="alone", process_set=odd)
elif core.rank() == 2:
    alone.wait()
core.barrier()
"""


def test_a_report_names_the_process_set(run_ranks: RunRanks) -> None:
    environment = {**os.environ, "PERSEUS_STALL_CHECK_TIME_SECONDS": "1"}
    environment["PERSEUS_DYNAMIC_PROCESS_SETS"] = "1"
    result = run_ranks(3, SETS, environment=environment)
    assert result.returncode == 0, result.stderr
    text = r"'allreduce.alone' in process set 1 \(\d s\): missing on rank 1; ready on rank 2"
    assert re.search(text, result.stderr), result.stderr
    assert "rank 1 last submitted 'allreduce.x' in process set 1" in result.stderr


#: Rank 1 comes late, and has submitted nothing.
SILENT = """
import time, numpy
import perseus_core as core
core.init()
if core.rank() == 1:
    time.sleep(2.5)
core.allreduce(numpy.ones(1), name="first")
"""


def test_a_rank_that_has_submitted_nothing_is_said_to_have(run_ranks: RunRanks) -> None:
    environment = {**os.environ, "PERSEUS_STALL_CHECK_TIME_SECONDS": "1"}
    result = run_ranks(2, SILENT, environment=environment)
    assert result.returncode == 0, result.stderr
    assert "  rank 1 has submitted nothing yet" in result.stderr
    assert "it has submitted nothing yet" in result.stderr  # to rank 1 itself
