"""Models in float64 for tests of pipelines, and what one process computes with them."""

from __future__ import annotations

import collections
import copy

import torch

import perseus.torch.horovod as hvd
from perseus.pipeline import Pipeline

WIDTH = 6


class Shift(torch.nn.Module):
    """Uses one weight twice, one after the other, and another one once."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.gain = torch.nn.Parameter(torch.rand(WIDTH, dtype=torch.float64))

    def forward(self, x):
        return x + self.inner(torch.tanh(self.inner(x)) * self.gain)


def make_model(layers, seed=0):
    """Returns as many layers as are wanted, with an activation between each two."""
    torch.manual_seed(seed)
    made = collections.OrderedDict()
    for number in range(layers):
        made[f"layer{number}"] = torch.nn.Sequential(
            Shift() if number % 2 else torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64),
            torch.nn.Tanh(),
        )
    return torch.nn.Sequential(made)


def make_batch(rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.rand(rows, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2)
    )


def in_one_process(model, x, target, loss_fn=torch.nn.functional.mse_loss):
    """Returns loss and gradients by name of the model in one piece, which stays as it was."""
    whole = copy.deepcopy(model)
    loss = loss_fn(whole(x), target)
    loss.backward()
    return loss.detach(), {name: one.grad for name, one in whole.named_parameters()}


def stages_of(schedule, ranks=None):
    """Returns how many stages a schedule takes on so many ranks; all, if not given."""
    return (hvd.size() if ranks is None else ranks) * (2 if schedule == "interleaved" else 1)


def split_evenly(model, stages):
    """Returns split points that give each stage the same number of layers."""
    names = [name for name, _ in model.named_children()]
    each = len(names) // stages
    return names[each::each][: stages - 1]


def make_pipeline(model, schedule, microbatches, ranks=None, **options):
    options.setdefault("loss_fn", torch.nn.functional.mse_loss)
    split = split_evenly(model, stages_of(schedule, ranks))
    return Pipeline(model, schedule=schedule, microbatches=microbatches, split=split, **options)


def require_gradients(pipeline, expected, tolerance=1e-12):
    """Asserts that gradients are those by name; returns how many."""
    count = 0
    for name, parameter in pipeline.named_parameters():
        assert parameter.grad is not None, name
        difference = (parameter.grad - expected[name]).abs().max().item()
        assert difference <= tolerance, (name, difference)
        count += 1
    return count
