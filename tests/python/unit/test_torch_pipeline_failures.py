"""A rank that is lost, or raises, in the middle of a pipeline's step ends the step on all ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import RunRanks

pytest.importorskip("torch.distributed.pipelining")

PARALLEL = Path(__file__).parents[1] / "parallel"

# The stage of rank 1 does what it must not in the second step, at its third micro-batch. The others
# say what their step ended with, and after how many seconds.
FAILS = """
import datetime, os, signal, sys, time
sys.path.insert(0, PARALLEL)
import torch, torch.distributed as dist, perseus.torch
import torch_pipelines
schedule, fault = SCHEDULE, FAULT
dist.init_process_group("perseus", timeout=datetime.timedelta(seconds=TIMEOUT))
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of the launcher, when a rank has failed
rank, size = dist.get_rank(), dist.get_world_size()
whole = torch_pipelines.blocks(size * len(torch_pipelines.stages_of(schedule, rank, size)))
pipeline = torch_pipelines.Pipeline(schedule, whole)
rows, targets = torch_pipelines.batch(1, whole, pipeline.micro_batches)
pipeline.step(rows, targets)
calls = []

def at_third(*_):
    calls.append(None)
    if len(calls) < 3:
        return
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ArithmeticError("stage 1 has failed")

if rank == 1:
    pipeline.modules[0].register_forward_pre_hook(at_third)
dist.barrier()
began = time.monotonic()
try:
    pipeline.step(rows, targets)
    said = "nothing"
except Exception as error:
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    said = f"{type(causes[-1]).__name__} {causes[-1]}"
sys.stdout.write(f"rank {rank} ended after {time.monotonic() - began:.1f} s with {said}\\n")
sys.stdout.flush()
if fault == "raises and leaves":
    sys.exit(rank == 1)
if fault == "raises and stays":
    store = dist.distributed_c10d._get_default_store()
    store.set(f"ended {rank}", "")
    store.wait([f"ended {one}" for one in range(size)])
    dist.destroy_process_group()
"""

ENDED = r"rank (\d) ended after ([\d.]+) s with (.*)"


def outcomes(
    run_ranks: RunRanks, schedule: str, fault: str, timeout: int
) -> dict[int, tuple[float, str]]:
    """Returns for each rank of three how long its step took, and what it ended with."""
    values = {"PARALLEL": str(PARALLEL), "SCHEDULE": schedule, "FAULT": fault, "TIMEOUT": timeout}
    script = FAILS
    for name, value in values.items():
        script = re.sub(rf"\b{name}\b", repr(value), script)
    # The launcher leaves the others the time to say what their step ended with.
    result = run_ranks(3, script, options=("--grace", "30"), timeout=100)
    found = re.findall(ENDED, result.stdout)
    assert found, result.stdout + result.stderr
    return {int(rank): (float(seconds), said) for rank, seconds, said in found}


def test_a_rank_is_killed(run_ranks: RunRanks) -> None:
    ended = outcomes(run_ranks, "ScheduleInterleaved1F1B", "killed", timeout=300)
    assert set(ended) == {0, 2}
    for seconds, said in ended.values():
        assert "rank 1" in said
        assert seconds < 60


def test_a_rank_raises_and_leaves(run_ranks: RunRanks) -> None:
    """Whoever learns of it leaves, too, so others may learn of that first."""
    ended = outcomes(run_ranks, "ScheduleInterleavedZeroBubble", "raises and leaves", timeout=300)
    assert ended.pop(1)[1].endswith("stage 1 has failed")
    assert any("rank 1" in said for _, said in ended.values())
    for seconds, said in ended.values():
        assert said.startswith("AbortedError")
        assert "has shut down or ended" in said
        assert seconds < 60


def test_a_rank_raises_and_stays(run_ranks: RunRanks) -> None:
    """Nobody is gone, so it is the group's time-out that ends the others' step."""
    ended = outcomes(run_ranks, "Schedule1F1B", "raises and stays", timeout=4)
    assert ended.pop(1)[1].endswith("stage 1 has failed")
    assert set(ended) == {0, 2}
    for _, said in ended.values():
        assert re.search(
            r"the recv from rank \d with tag 0 is not complete after the timeout", said
        )
