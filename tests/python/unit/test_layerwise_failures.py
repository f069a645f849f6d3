"""LayerWise when a rank dies, leaves, or is stopped: every other rank gets an error in seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

HEAD = """
import os, signal, sys, time
import torch
import perseus.torch.horovod as hvd
from perseus.pipeline.layerwise import RBM, LayerWise, StageLostError

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, when another rank has failed
hvd.init()
rank, size = hvd.rank(), hvd.size()
victim = int(sys.argv[1])

class Stage(RBM):
    def train(self, batch, target=None):
        if rank == victim:
            self.updates = getattr(self, "updates", 0) + 1
            if self.updates == 5:
                end()
        return super().train(batch)

pipeline = LayerWise([Stage(12, 12, seed=number) for number in range(size)], chunk=2)
batches = [torch.rand(8, 12)] * 1000
"""

DIES = """
def end():
    os.kill(os.getpid(), signal.SIGKILL)

try:
    pipeline.train(batches)
except StageLostError as error:
    assert isinstance(error, hvd.HorovodInternalError)
    assert str(error).startswith(f"lost: stage {victim} (Stage): "), error
    print("well", flush=True)
os._exit(0)
"""

LEAVES = """
def end():
    hvd.shutdown()
    print("well", flush=True)
    time.sleep(1)
    os._exit(0)

try:
    pipeline.train(batches)
except StageLostError as error:
    assert f"stage {victim} (Stage)" in str(error), error
    print("well", flush=True)
os._exit(0)
"""

STOPS = """
def end():
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(1)  # the launcher has it go on, to end

try:
    pipeline.train(batches)
except StageLostError as error:
    assert f"stage {victim} (Stage)" in str(error), error
    print("well", flush=True)
os._exit(1)
"""

DIES_BEFORE = """
def end():
    pass

if rank == victim:
    os.kill(os.getpid(), signal.SIGKILL)
for action in (lambda: pipeline.train(batches), pipeline.collect):
    try:
        action()
    except StageLostError as error:
        assert f"stage {victim} (Stage)" in str(error), error
        print("well", flush=True)
os._exit(0)
"""


def run(
    folder: Path, ranks: int, program: str, victim: int, **environment: str
) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(HEAD + program)
    settings = [f"{name}={value}" for name, value in environment.items()]
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks)]
    return subprocess.run(
        ["env", *settings, *launcher, sys.executable, str(file), str(victim)],
        capture_output=True,
        text=True,
        timeout=90,
    )


@pytest.mark.parametrize("victim", [0, 2])
def test_the_stage_of_a_rank_that_dies_is_named_on_the_others(tmp_path: Path, victim: int) -> None:
    result = run(tmp_path, 3, DIES, victim)
    assert result.stdout.count("well") == 2, result.stdout + result.stderr


@pytest.mark.parametrize("victim", [2])
def test_the_stage_of_a_rank_that_leaves_is_named(tmp_path: Path, victim: int) -> None:
    result = run(tmp_path, 3, LEAVES, victim)
    assert result.stdout.count("well") == 3, result.stdout + result.stderr


def test_the_stage_of_a_rank_that_is_stopped_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, 2, STOPS, 1, PERSEUS_PEER_TIMEOUT="2")
    assert result.stdout.count("well") == 1, result.stdout + result.stderr


def test_a_rank_that_died_before_is_found_when_they_train_or_collect(tmp_path: Path) -> None:
    result = run(tmp_path, 3, DIES_BEFORE, 1)
    assert result.stdout.count("well") == 4, result.stdout + result.stderr
