"""Elastic jobs of real processes: hosts come and go, ranks are lost, and training goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_job import Job, finished
from elastic_programs import ELASTIC

#: Trains to step STEPS. Each step adds 1 to a value that all ranks hold, so that at the end it is
#: STEPS if no step was lost or counted twice. At given steps, things happen (EVENTS).
TRAINING = (
    ELASTIC
    + """
import json, signal, socket

folder, steps = os.environ["FOLDER"], int(os.environ["STEPS"])
events = json.loads(os.environ["EVENTS"])  # by step: what rank 0 writes into the hosts file, or
# what a rank does, by its rank at its start: {"3": "a:1"} or {"3": "1 exits"}

def happens(what):
    rank, _, how = what.partition(" ")
    if not how:
        if core.rank() == 0:
            with open(os.path.join(folder, "hosts.new"), "w") as file:
                file.write(what.replace(",", "\\n") + "\\n")
            os.replace(file.name, os.path.join(folder, "hosts"))
    elif os.environ["PERSEUS_RANK"] == rank:  # its rank at its start
        if how == "exits": os._exit(7)
        if how == "leaves": os._exit(0)
        if how == "raises": raise ZeroDivisionError("the script's own mistake")
        if how == "is killed": os.kill(os.getpid(), signal.SIGKILL)
        if how == "is stopped": os.kill(os.getpid(), signal.SIGSTOP)
        if how == "hangs up":
            with socket.socket(fileno=os.dup(int(os.environ["PERSEUS_DRIVER_FD"]))) as driver:
                driver.shutdown(socket.SHUT_RDWR)

core.init()
state = ObjectState(broadcast, core.rank, step=0, value=0.0, seen={}, entered=0)

def train(state):
    state.entered += 1
    while state.step < steps:
        what = events.get(str(state.step))
        if what and what not in state.seen:
            state.seen = {**state.seen, what: core.size()}
            happens(what)
        mean = core.allreduce(np.full(1000, state.value + 1, np.float64), name="step")
        assert (mean == state.value + 1).all()
        state.value, state.step = float(mean[0]), state.step + 1
        time.sleep(float(os.environ.get("PAUSE", "0.02")))
        state.commit()
    return state.value

value = run_fn(train, reset)(state)
assert value == steps, value
print("well", core.rank(), core.size(), state.entered, flush=True)
core.shutdown()
"""
)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, TRAINING)


def test_nothing_happens(job: Job) -> None:
    assert finished(job.run("-np", "2", hosts="localhost:2")) == [(0, 2, 1), (1, 2, 1)]


def test_a_job_waits_for_its_first_hosts(job: Job) -> None:
    prints = f"mkdir {job.folder}/asked && exit"  # nothing at first
    result = job.run("-np", "2", hosts="localhost:2", prints=prints)
    assert finished(result) == [(0, 2, 1), (1, 2, 1)]
    assert "there are 0 slots, and the job needs 2; waiting for more, for up to" in result.stderr


def test_answers_that_make_no_sense_change_nothing(job: Job) -> None:
    events = {"3": "#none", "70": "localhost:1,localhost:1", "140": "localhost:2,127.0.0.1:1"}
    result = job.run("-np", "2", hosts="localhost:2", EVENTS=json.dumps(events), steps=250)
    assert finished(result) == [(0, 3, 2), (1, 3, 2), (2, 3, 2)]
    kept = "; the hosts known so far stay in use"
    assert result.stderr.count(f"no host is named any more{kept}") == 1
    assert result.stderr.count(kept) == 2
    assert result.stderr.count("hosts can be found out again") == 1


def test_a_host_is_added(job: Job) -> None:
    result = job.run(
        "-np", "2", hosts="localhost:2", EVENTS='{"3": "localhost:2,127.0.0.1:1"}', steps=200
    )
    assert finished(result) == [(0, 3, 2), (1, 3, 2), (2, 3, 2)]


def test_joiners_are_waited_for_at_once_if_asked(job: Job) -> None:
    events = '{"3": "localhost:1,127.0.0.1:2"}'
    result = job.run("-np", "1", "--join", "at-once", hosts="localhost:1", EVENTS=events)
    assert finished(result) == [(0, 3, 2), (1, 3, 2), (2, 3, 2)]


def test_a_host_is_removed(job: Job) -> None:
    result = job.run("-np", "2", hosts="localhost:2,127.0.0.1:1", EVENTS='{"3": "localhost:2"}')
    assert finished(result) == [(0, 2, 2), (1, 2, 2)]


@pytest.mark.parametrize("join", ["background", "at-once"])
def test_all_hosts_are_replaced_at_once(job: Job, join: str) -> None:
    result = job.run(
        "-np", "2", "--join", join, hosts="localhost:2", EVENTS='{"3": "127.0.0.1:2"}', steps=300
    )
    assert [(rank, size) for rank, size, _ in finished(result)] == [(0, 2), (1, 2)]
    assert "these stay until a new one has the state: 0, 1\n" in result.stderr


@pytest.mark.parametrize("how", ["exits", "leaves", "raises", "is killed"])
def test_a_rank_is_lost(job: Job, how: str) -> None:
    flags = ("-np", "3", "--min-np", "1", "--blacklist-by", "slot")
    result = job.run(*flags, hosts="localhost:3", EVENTS=f'{{"3": "1 {how}"}}')
    assert finished(result) == [(0, 2, 2), (1, 2, 2)]


def test_a_rank_that_has_hung_up_is_told_of_a_change(job: Job) -> None:
    # As one that is ending: its socket is closed before its process has ended.
    events = '{"5": "1 hangs up", "10": "localhost:3"}'
    flags = ["-np", "2", "--min-np", "1", "--max-np", "3", "--blacklist-by", "slot"]
    result = job.run(*flags, hosts="localhost:2", EVENTS=events, steps=40)
    assert [(rank, size) for rank, size, _ in finished(result)] == [(0, 2), (1, 2)]
    assert "the connection to host localhost" not in result.stderr


def test_a_rank_is_stopped_while_another_starts(job: Job) -> None:
    # The new one, which cannot know that the stopped one says nothing, counts for nothing there.
    flags = ("-np", "3", "--min-np", "1", "--blacklist-by", "slot")
    events = '{"3": "localhost:3,127.0.0.1:1", "4": "1 is stopped"}'
    result = job.run(*flags, hosts="localhost:3", EVENTS=events, PERSEUS_PEER_TIMEOUT="3")
    assert finished(result) == [(0, 3, 2), (1, 3, 2), (2, 3, 2)]
    assert "the others have given up on rank 1" in result.stderr


def test_a_rank_is_lost_and_another_takes_its_slot_after_the_cooldown(job: Job) -> None:
    flags = ("-np", "2", "--min-np", "1", "--blacklist-by", "slot")
    cooldown = ("--blacklist-cooldown-range", "1", "1")
    result = job.run(
        *flags, *cooldown, hosts="localhost:2", steps=300, EVENTS='{"3": "1 is killed"}'
    )
    assert finished(result) == [(0, 2, 3), (1, 2, 3)]


def test_a_host_of_a_lost_rank_is_left_out(job: Job) -> None:
    result = job.run(
        "-np", "4", "--min-np", "1", hosts="localhost:2,127.0.0.1:2", EVENTS='{"3": "3 exits"}'
    )
    assert finished(result) == [(0, 2, 2), (1, 2, 2)]
    assert "host 127.0.0.1 is not used for the rest of the job" in result.stderr


def test_too_few_slots_end_the_job_after_the_time_out(job: Job) -> None:
    flags = ("-np", "2", "--blacklist-by", "slot", "--elastic-timeout", "2")
    result = job.run(*flags, hosts="localhost:2", EVENTS='{"3": "1 exits"}')
    assert result.returncode == 1
    assert (
        "there are 1 slots, and the job needs 2; waiting for more, for up to 2 s" in result.stderr
    )
    assert "1 workers were ready after 2 s, on 1 slots; the job needs 2" in result.stderr


def test_a_job_that_has_never_had_its_slots_has_no_ranks_to_end(job: Job) -> None:
    result = job.run("-np", "2", "--elastic-timeout", "1", hosts="localhost:1")
    assert result.returncode == 1
    too_few = "after 1 s there are too few slots: 1; the job needs 2 to begin\n"
    assert result.stderr.endswith(too_few)


@pytest.mark.parametrize("source", ["--host-discovery-script", "--watch-hostfile"])
def test_a_source_may_know_no_hosts_at_first(source: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").touch()
    where = "true" if source.endswith("script") else str(tmp_path / "hosts")
    flags = ["-np", "2", source, where, "--elastic-timeout", "1"]
    command = [sys.executable, "-m", "perseus.run", *flags, "true"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (
        1,
        "perseusrun: there are 0 slots, and the job needs 2; waiting for more, for up to 1 s\n"
        "perseusrun: after 1 s there are too few slots: 0; the job needs 2 to begin\n",
    )


def test_nobody_is_left(job: Job) -> None:
    result = job.run("-np", "1", hosts="localhost:1", EVENTS='{"3": "0 exits"}')
    assert result.returncode == 1
    assert "no worker is left" in result.stderr


def test_the_first_look_for_hosts_must_work(job: Job) -> None:
    result = job.run("-np", "1", hosts="localhost:nonsense")
    assert result.returncode == 2
    assert "localhost:nonsense" in result.stderr


def test_ranks_that_were_forked_or_started_by_a_rank_cannot_take_its_place(
    job: Job, tmp_path: Path
) -> None:
    program = tmp_path / "children.py"
    program.write_text(
        """
import os, subprocess, sys
import perseus_core as core
if sys.argv[1:] == ["child"]:
    core.init()
core.init()
child = subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True)
assert "started by a rank" in child.stderr, child.stderr
pid = os.fork()
if pid == 0:
    try:
        core.init()
    except ValueError as error:
        os._exit(0 if "elastic job" in str(error) else 1)
    os._exit(2)
assert os.waitpid(pid, 0)[1] == 0
print("well")
"""
    )
    (tmp_path / "hosts").write_text("localhost:2\n")
    command = [sys.executable, "-m", "perseus.run", "-np", "2", "--max-np", "2"]
    result = subprocess.run(
        [*command, sys.executable, str(program)], capture_output=True, text=True, timeout=40
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("well") == 2
