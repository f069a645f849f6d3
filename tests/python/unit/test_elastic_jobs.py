"""Elastic jobs of real processes: hosts come and go, ranks are lost, and training goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Trains to step STEPS. Each step adds 1 to a value that all ranks hold, so that at the end it is
#: STEPS if no step was lost or counted twice. At given steps, things happen (EVENTS).
TRAINING = """
import json, os, signal, sys, time
import numpy as np
import perseus_core as core
from perseus.common.elastic import ObjectState, run_fn
from perseus.common.objects import broadcast_object
from perseus.common.process_sets import global_process_set

folder, steps = os.environ["FOLDER"], int(os.environ["STEPS"])
events = json.loads(os.environ["EVENTS"])  # by step: what rank 0 writes into the hosts file, or
# what a rank does: {"3": "a:1"} or {"3": "1 exits"}

def broadcast(value):
    return broadcast_object(value, 0, "state", global_process_set)

def reset():
    core.shutdown()
    core.init()

def happens(what):
    rank, _, how = what.partition(" ")
    if not how:
        if core.rank() == 0:
            with open(os.path.join(folder, "hosts.new"), "w") as file:
                file.write(what.replace(",", "\\n") + "\\n")
            os.replace(file.name, os.path.join(folder, "hosts"))
    elif core.rank() == int(rank):
        if how == "exits": os._exit(7)
        if how == "leaves": os._exit(0)
        if how == "raises": raise ZeroDivisionError("the script's own mistake")
        if how == "is killed": os.kill(os.getpid(), signal.SIGKILL)

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


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.result = subprocess.CompletedProcess[str]([], 0)

    def run(
        self, *arguments: str, hosts: str, steps: int = 60, timeout: float = 120, **more: str
    ) -> subprocess.CompletedProcess[str]:
        (self.folder / "hosts").write_text(hosts.replace(",", "\n") + "\n")
        script = self.folder / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat {self.folder}/hosts\n")
        script.chmod(0o755)
        program = self.folder / "train.py"
        program.write_text(TRAINING)
        environment = {
            **os.environ,
            "FOLDER": str(self.folder),
            "STEPS": str(steps),
            "EVENTS": "{}",
            **more,
        }
        command = [sys.executable, "-m", "perseus.run", "--host-discovery-script", str(script)]
        return subprocess.run(
            [*command, "--verbose", *arguments, sys.executable, str(program)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def finished(result: subprocess.CompletedProcess[str]) -> list[tuple[int, int, int]]:
    """Returns rank, size and entries of those that have come to the end, by rank."""
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.split("well ")[1] for line in result.stdout.splitlines() if "well " in line]
    return sorted(tuple(map(int, line.split())) for line in lines)


def test_nothing_happens(job: Job) -> None:
    assert finished(job.run("-np", "2", hosts="localhost:2")) == [(0, 2, 1), (1, 2, 1)]


def test_a_host_is_added(job: Job) -> None:
    result = job.run(
        "-np", "2", hosts="localhost:2", EVENTS='{"3": "localhost:2,127.0.0.1:1"}', steps=200
    )
    assert finished(result) == [(0, 3, 2), (1, 3, 2), (2, 3, 2)]


def test_a_host_is_removed(job: Job) -> None:
    result = job.run("-np", "2", hosts="localhost:2,127.0.0.1:1", EVENTS='{"3": "localhost:2"}')
    assert finished(result) == [(0, 2, 2), (1, 2, 2)]


@pytest.mark.parametrize("how", ["exits", "leaves", "raises", "is killed"])
def test_a_rank_is_lost(job: Job, how: str) -> None:
    result = job.run("-np", "3", "--blacklist-by", "slot", hosts="localhost:3", EVENTS='{"3": "1 %s"}' % how)
    assert finished(result) == [(0, 2, 2), (1, 2, 2)]
