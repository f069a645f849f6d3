"""Elastic jobs whose programs call a training function more than once, or fail after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic_programs import ELASTIC

import perseus.run

#: Calls a training function again and again. Each call has 5 steps, and each step adds 1 to a value
#: that all ranks hold.
CALLS = (
    ELASTIC
    + """
import signal

core.init()
rank = os.environ["PERSEUS_RANK"]
is_new = os.environ["PERSEUS_ELASTIC_MEETING"] != "0"
where, least_size, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def dies(place):
    if place == where and rank == "1" and not is_new:
        os.kill(os.getpid(), signal.SIGKILL)

def train(state, call):
    while state.step < 5 * (call + 1):
        mean = core.allreduce(np.full(10, state.value + 1, np.float64), name="step")
        assert (mean == state.value + 1).all()
        state.value, state.step = float(mean[0]), state.step + 1
        if state.step == 8: dies("in the second call")
        time.sleep(0.02)
        state.commit()
    # A new state for each call: what a rank leaves out must not be mixed up with another one.
    return {"call": call, "size": core.size(), "value": state.value}

train = run_fn(train, reset)
last, together, left_out, call = None, 0, 0, 0
while call < calls or together < 2:
    kept = last or {"value": 0.0}
    values = {"step": 5 * call, "value": kept["value"], f"of call {call}": 0}
    state = ObjectState(broadcast, core.rank, **values)
    last = train(state, call)
    if last is None:
        left_out += 1
    else:
        assert last["value"] == 5 * (call + 1), last
        together = together + 1 if last["size"] >= least_size else 0
    call += 1
    if call == 1: dies("between two calls")
print("well", rank, "new" if is_new else "old", f"left out {min(left_out, 1)}", flush=True)
core.shutdown()
"""
)

#: Does something after training.
LATE = (
    ELASTIC
    + """
core.init()

def train(state):
    for _ in range(3):
        core.barrier()
        state.commit()

run_fn(train, lambda: None)(ObjectState(lambda value: value, core.rank))
who, how = sys.argv[1:]
if who in (os.environ["PERSEUS_RANK"], "all"):
    if how == "raises": raise ValueError("too late")
    sys.exit(3)
"""
)

#: One rank fails in the training function once the other has returned from it, or has ended.
LATE_IN_TRAINING = (
    ELASTIC
    + """
from pathlib import Path

core.init()
folder, who, moment, how = Path(sys.argv[1]), *sys.argv[2:]
own, other = folder / f"rank.{core.rank()}", folder / f"rank.{1 - core.rank()}"
is_late = who == str(core.rank())
own.write_text(str(os.getpid()))

def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end: os._exit(9)
        time.sleep(0.01)

def is_gone():
    return not Path("/proc", other.read_text()).exists()

def train(state):
    for _ in range(3):
        core.barrier()
        state.commit()
    if is_late:
        wait_until((folder / "returned").exists if moment == "has returned" else is_gone)
        if how == "raises": raise ValueError("too late")
        os._exit(3)

run_fn(train, lambda: None)(ObjectState(lambda value: value, core.rank))
(folder / "returned").touch()
if moment == "has returned": wait_until(is_gone)
"""
)


FLAGS = "--min-np 1 --max-np 2 -H localhost:2 --blacklist-by slot --elastic-timeout 20"


def run(
    folder: Path, code: str, *arguments: str, flags: str = "", is_elastic: bool = True
) -> tuple[int, str, str]:
    program = folder / "program.py"
    program.write_text(code)
    flags = f"-np 2 {FLAGS if is_elastic else ''} {flags}"
    command = [sys.executable, "-m", "perseus.run", *flags.split()]
    result = subprocess.run(
        [*command, sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=40,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize("who", ["0", "1", "all"])
@pytest.mark.parametrize(("how", "code"), [("raises", 1), ("exits", 3)])
def test_a_rank_that_fails_after_training_fails_the_job(
    tmp_path: Path, who: str, how: str, code: int
) -> None:
    status, _, said = run(tmp_path, LATE, who, how)
    assert status == code, said
    failed = [
        f"perseusrun: the job has failed: rank {rank} on host localhost exited with code {code} "
        "after its training function had returned\n"
        for rank in ("01" if who == "all" else who)
    ]
    assert said.endswith(tuple(failed))


@pytest.mark.parametrize("who", ["0", "1"])
@pytest.mark.parametrize("moment", ["has returned", "has ended"])
@pytest.mark.parametrize(("how", "code"), [("raises", 1), ("exits", 3)])
def test_a_rank_that_fails_in_training_when_another_has_returned_fails_the_job(
    tmp_path: Path, who: str, moment: str, how: str, code: int
) -> None:
    status, _, said = run(tmp_path, LATE_IN_TRAINING, str(tmp_path), who, moment, how)
    assert status == code, said
    assert said.endswith(
        f"perseusrun: the job has failed: rank {who} on host localhost exited with code {code}, "
        "after its training function had returned on another rank\n"
    )
    assert ("ValueError: too late" in said) == (how == "raises")


def test_a_job_whose_ranks_do_not_fail_after_training_has_succeeded(tmp_path: Path) -> None:
    assert run(tmp_path, LATE, "nobody", "")[0] == 0


@pytest.mark.parametrize("where", ["in the second call", "between two calls"])
def test_a_rank_is_lost_and_the_other_goes_on_through_all_calls(tmp_path: Path, where: str) -> None:
    status, output, said = run(tmp_path, CALLS, where, "1", "4")
    assert status == 0, said
    assert "well 0 old left out 0" in output
    assert "slot 1 of host localhost is not used for the rest of the job" in said


@pytest.mark.parametrize("join", ["background", "at-once"])
def test_a_rank_that_joins_in_a_later_call_leaves_out_those_before(
    tmp_path: Path, join: str
) -> None:
    flags = f"--blacklist-cooldown-range 1 1 --join {join}"
    status, output, said = run(tmp_path, CALLS, "in the second call", "2", "4", flags=flags)
    assert status == 0, said
    assert "well 0 old left out 0" in output
    assert "well 1 new left out 1" in output


@pytest.mark.parametrize("blacklist_by", ["slot", "host"])
@pytest.mark.parametrize(
    "where", ["after training, rank 1", "at the end of training, rank 1", "in training, all"]
)
def test_run_names_the_rank_that_has_failed_and_the_cause(where: str, blacklist_by: str) -> None:
    with pytest.raises(RuntimeError, match=r"rank \d on host .* exited with code 1") as raised:
        started(where, blacklist_by)
    assert "ValueError: rank " in str(raised.value)
    assert isinstance(raised.value.__cause__, ValueError)


def test_the_results_of_run_are_those_of_ranks_that_have_not_failed() -> None:
    assert started("in training, rank 1", "slot") == [7]


def started(where: str, blacklist_by: Any) -> list[int]:
    """Trains on two ranks, of which one fails somewhere, or both."""

    def trains() -> int:
        import os
        import time

        import numpy as np

        import perseus_core as core
        from perseus.common.elastic import ObjectState, run_fn

        def train(state: ObjectState) -> int:
            first = int(core.allgather(np.array([os.getpid()]), name="processes")[0])
            for step in range(3):
                core.allreduce(np.ones(1), name="step")
                if where == "in training, all":
                    raise ValueError(f"rank {core.rank()} cannot go on")
                if where == "in training, rank 1" and (core.rank(), step) == (1, 1):
                    raise ValueError("rank 1 cannot go on")
                state.commit()
            if where == "at the end of training, rank 1" and core.rank() == 1:
                for _ in range(3000):
                    if not os.path.exists(f"/proc/{first}"):
                        raise ValueError("rank 1 cannot go on")
                    time.sleep(0.01)
            return 7

        def reset() -> None:
            core.shutdown()
            core.init()

        core.init()
        result = run_fn(train, reset)(ObjectState(lambda value: value, core.rank))
        if where == "after training, rank 1" and core.rank() == 1:
            raise ValueError("rank 1 cannot go on")
        return result

    return perseus.run.run(
        trains,
        num_proc=2,
        min_num_proc=1,
        max_num_proc=2,
        hosts="localhost:2",
        blacklist_by=blacklist_by,
        elastic_timeout=20,
    )


#: One rank leaves the job by itself in each entry.
SHUTS_DOWN = (
    ELASTIC
    + """
core.init()

def train(state, commits):
    state.entered += 1
    while True:
        if commits and state.step == 8: return
        core.allreduce(np.ones(1), name="step")
        state.step += 1
        if os.environ["PERSEUS_RANK"] == "1": core.shutdown()
        if commits: state.save(); state._commits += 1

def broadcast(value):
    return broadcast_object(value, 0, "state", global_process_set)

state = ObjectState(broadcast, core.rank, step=0)
state.entered = 0
try:
    run_fn(train, lambda: (core.shutdown(), core.init()))(state, sys.argv[1] == "commits")
finally:
    print("entered", state.entered, flush=True)
"""
)


@pytest.mark.parametrize("is_elastic", [True, False])
def test_training_that_fails_again_and_again_with_the_same_ranks_ends(
    tmp_path: Path, is_elastic: bool
) -> None:
    status, output, said = run(tmp_path, SHUTS_DOWN, "", is_elastic=is_elastic)
    assert status == 1
    assert output.count("entered 6\n") == 2
    assert said.count("training begins again at its last commit, with the same ranks, since") == 10
    assert "(5 of at most 5 times in a row)" in said
    why = "training has failed 6 times in a row without a commit, although no rank has left or come"
    assert said.count(f"HorovodInternalError: {why}: ") == 2


def test_training_that_commits_may_fail_any_number_of_times(tmp_path: Path) -> None:
    status, output, said = run(tmp_path, SHUTS_DOWN, "commits")
    assert (status, output.count("entered 8\n")) == (0, 2), said
