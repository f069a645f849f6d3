"""A stage of a pipeline raises, or its rank is lost: all ranks hear of it, and none waits."""

from __future__ import annotations

import os

import pytest
from conftest import RunRanks, all_well

pytest.importorskip("torch")

HEAD = """
import os, signal, sys, time
import torch
import perseus.torch.horovod as hvd
from perseus.pipeline import Pipeline, StageError

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, when another rank has failed
hvd.init(process_sets="dynamic")
rank, size = hvd.rank(), hvd.size()

class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(500, 500)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return Trap.apply(self.linear(x), self)

class Trap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, stage):
        ctx.stage, ctx.call = stage, stage.calls
        spring("forward", stage.calls)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        spring("backward", ctx.call)
        return gradient, None

x = torch.rand(16, 500)

def make(schedule, **options):
    count = size // options.get("mesh", (1, size))[0]
    stages = [Stage for _ in range(count * (2 if schedule == "interleaved" else 1))]
    options.setdefault("microbatches", 2 * count)
    return Pipeline(stages, loss_fn=torch.nn.functional.mse_loss, schedule=schedule, **options)
"""

# Each rank in turn fails in each place. Then the same pipeline does a step.
RAISES = (
    HEAD
    + """
place = None

def spring(where, call):
    if place == (rank, where, call):
        raise ArithmeticError("a trap")

for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble"):
    pipeline = make(schedule)
    for culprit in range(size):
        for where in ("forward", "backward"):
            for call in (1, 2 * size):
                for module in pipeline.modules.values():
                    module.calls = 0
                place = culprit, where, call
                begin = time.monotonic()
                try:
                    pipeline.step(x, x)
                except StageError as error:
                    text = str(error)
                    assert f"(rank {culprit}) failed in {where}" in text, text
                    assert "ArithmeticError: a trap" in text, text
                    is_own = isinstance(error.__cause__, ArithmeticError)
                    assert is_own == (culprit == rank)
                else:
                    raise AssertionError(f"{place} raised nothing")
                place = None
                assert pipeline.step(x, x) > 0
print("well", flush=True)
"""
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("size", "transport"), [(2, "tcp"), (3, "shm")])
def test_a_stage_that_raises_is_named_on_all_ranks_and_the_job_goes_on(
    run_ranks: RunRanks, size: int, transport: str
) -> None:
    # No message is kept for a rank that has not asked: all sends wait for their receives.
    settings = {"PERSEUS_TRANSPORT": transport, "PERSEUS_MESSAGE_CREDIT": "0"}
    all_well(run_ranks(size, RAISES, environment=os.environ | settings, timeout=100), size)


REPLICAS = (
    HEAD
    + """
def spring(where, call):
    if rank == 1 and where == "backward" and call == 3:
        raise ArithmeticError("a trap")

pipeline = make("1f1b", mesh=(2, 2))
optimizer = pipeline.distributed(torch.optim.SGD(pipeline.parameters(), lr=0.1))
try:
    pipeline.step(x, x)
except StageError as error:
    assert "stage 1 (rank 1) failed in backward of micro-batch 2" in str(error), error
else:
    raise AssertionError("nothing was raised")
print("well", flush=True)
os._exit(0)  # gradients are under way that no other rank will reduce
"""
)


def test_the_other_replicas_hear_of_a_stage_that_raises(run_ranks: RunRanks) -> None:
    all_well(run_ranks(4, REPLICAS), 4)


# Rank 1 dies amid a step, which is the second: in the first, all goes well.
DIES = (
    HEAD
    + """
from perseus_core import AbortedError

def spring(where, call):
    if steps == 2 and rank == 1 and where == WHERE and call == 5:
        os.kill(os.getpid(), signal.SIGKILL)

steps = 0
pipeline = make(SCHEDULE, microbatches=4)
for steps in (1, 2):
    for module in pipeline.modules.values():
        module.calls = (steps - 1) * 4
    try:
        pipeline.step(x, x)
    except AbortedError as error:
        assert steps == 2
        assert "rank 1" in str(error) and "stage" in str(error), error
        print("well", flush=True)
        os._exit(0)
raise AssertionError("nothing was raised")
"""
)


@pytest.mark.parametrize(("schedule", "where"), [("1f1b", "forward"), ("zero-bubble", "backward")])
def test_all_hear_which_stage_was_on_a_rank_that_has_died(
    run_ranks: RunRanks, schedule: str, where: str
) -> None:
    script = DIES.replace("SCHEDULE", repr(schedule)).replace("WHERE", repr(where))
    result = run_ranks(3, script)
    assert result.stdout.count("well") == 2, result.stdout + result.stderr
    assert "AssertionError" not in result.stderr, result.stderr


# One rank calls nothing any more, but lives.
LEAVES = (
    HEAD
    + """
def spring(where, call):
    pass

pipeline = make("1f1b")
pipeline.step(x, x)
if rank == 1:
    hvd.shutdown()
else:
    from perseus_core import AbortedError
    try:
        pipeline.step(x, x)
    except AbortedError as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("nothing was raised")
print("well", flush=True)
os._exit(0)
"""
)


def test_nobody_waits_for_a_rank_that_leaves(run_ranks: RunRanks) -> None:
    result = run_ranks(3, LEAVES)
    assert result.stdout.count("well") == 3, result.stdout + result.stderr
