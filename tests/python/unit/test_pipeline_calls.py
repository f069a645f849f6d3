"""Ranks call different methods of a pipeline, or leave one amid a call: no rank waits."""

from __future__ import annotations

import os

import pytest
from conftest import RunRanks, all_well

pytest.importorskip("torch")

HEAD = """
import itertools, sys, tempfile
import torch
import perseus.torch.horovod as hvd
from perseus.pipeline import Pipeline, StageError

hvd.init(process_sets="dynamic")
rank, size = hvd.rank(), hvd.size()
WIDTH = 3000
x = torch.rand(12, WIDTH)
folder = hvd.broadcast_object(tempfile.mkdtemp() if rank == 0 else None, 0)

class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.rand(WIDTH))
        self.trap = None

    def forward(self, x):
        if self.trap is not None:
            raise self.trap
        return torch.tanh(x * self.gain)

def make(schedule, **options):
    count = size // options.get("mesh", (1, size))[0]
    stages = [Stage for _ in range(count * (2 if schedule == "interleaved" else 1))]
    return Pipeline(stages, loss_fn=torch.nn.functional.mse_loss, schedule=schedule,
                    microbatches=2 * count, **options)

def call(pipeline, method):
    if method in ("save", "load"):
        return getattr(pipeline, method)(folder)
    return getattr(pipeline, method)(*{"step": (x, x), "predict": (x,), "report": ()}[method])
"""

# Each rank in turn calls something else than the others, in all pairs of methods. Then the same
# pipeline does a step, for which no message may be left over.
DIFFERENT = (
    HEAD
    + """
METHODS = ["step", "predict", "report", "save", "load"]
for schedule in ("1f1b", "interleaved", "zero-bubble"):
    # Stages at both ends share a weight, so that ranks that are no neighbours have messages.
    last = size * (2 if schedule == "interleaved" else 1) - 1
    pipeline = make(schedule, tied=[[(0, "gain"), (last, "gain")]])
    call(pipeline, "save")
    for usual, other in itertools.permutations(METHODS, 2):
        for culprit in range(size):
            method = other if rank == culprit else usual
            others = [r for r in range(size) if r != culprit]
            s = "s" if len(others) > 1 else ""
            expected = (f"{other} on rank {culprit}",
                        f"{usual} on rank{s} {' and '.join(map(str, others))}")
            try:
                call(pipeline, method)
            except ValueError as error:
                assert all(part in str(error) for part in expected), (str(error), expected)
                assert "all ranks must call the same methods in the same order" in str(error)
            else:
                raise AssertionError(f"{usual} and {other} raised nothing")
            assert pipeline.step(x, x) > 0
print("well", flush=True)
"""
)


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("size", "transport", "credit"), [(2, "tcp", "0"), (3, "shm", None), (4, "shm", "0")]
)
def test_ranks_in_different_calls_are_told_on_every_rank(
    run_ranks: RunRanks, size: int, transport: str, credit: str | None
) -> None:
    settings = {"PERSEUS_TRANSPORT": transport}
    if credit is not None:  # all sends wait for their receives
        settings["PERSEUS_MESSAGE_CREDIT"] = credit
    all_well(run_ranks(size, DIFFERENT, environment=os.environ | settings, timeout=140), size)


REPLICAS = (
    HEAD
    + """
pipeline = make("1f1b", mesh=(2, 2))
try:
    call(pipeline, "step" if rank < 2 else "predict")
except ValueError as error:
    assert "step on ranks 0 and 1, predict on ranks 2 and 3" in str(error), error
else:
    raise AssertionError("nothing was raised")
assert pipeline.step(x, x) > 0
print("well", flush=True)
"""
)


def test_replicas_in_different_calls_are_told(run_ranks: RunRanks) -> None:
    all_well(run_ranks(4, REPLICAS), 4)


MODES = (
    HEAD
    + """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Stage() for _ in range(size))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

pipeline = Pipeline(Model(), loss_fn=torch.nn.functional.mse_loss, microbatches=size, sample=x[:2],
                    split=[f"layers.{number}" for number in range(1, size)])
pipeline.train(rank > 0)
try:
    pipeline.step(x, x)
except ValueError as error:
    assert "step in evaluation mode on rank 0, step on rank 1" in str(error), error
else:
    raise AssertionError("nothing was raised")
pipeline.train(False)
assert pipeline.step(x, x) > 0
print("well", flush=True)
"""
)


def test_traced_stages_in_different_modes_are_told(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, MODES), 2)


# A stage raises what is no Exception, and the program goes on.
INTERRUPTED = (
    HEAD
    + """
pipeline = make("1f1b")
for culprit in range(size):
    for trap in (KeyboardInterrupt(), SystemExit(3)):
        for method in ("step", "predict"):
            (own,) = pipeline.modules.values()
            own.trap = trap if rank == culprit else None
            try:
                call(pipeline, method)
            except (KeyboardInterrupt, SystemExit) as error:
                assert rank == culprit and error is trap
            except StageError as error:
                assert rank != culprit
                expected = f"rank {culprit} was interrupted: {type(trap).__name__}"
                assert expected in str(error), error
            else:
                raise AssertionError("nothing was raised")
            own.trap = None
            assert pipeline.step(x, x) > 0
print("well", flush=True)
"""
)


@pytest.mark.parametrize("size", [1, 3])
def test_a_rank_that_is_interrupted_in_a_call_tells_the_others(
    run_ranks: RunRanks, size: int
) -> None:
    all_well(run_ranks(size, INTERRUPTED), size)
