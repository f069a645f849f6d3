"""A program must use the optimizer that DistributedOptimizer returns, or there is a warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import perseus.torch.horovod as hvd  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod", "two_ranks")


@pytest.fixture(autouse=True)
def no_other_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def make(op: int = hvd.Average):
    """Returns a model, its own optimizer, and the one that reduces gradients."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    named = model.named_parameters()
    return model, optimizer, hvd.DistributedOptimizer(optimizer, named_parameters=named, op=op)


def train(model, optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_one_that_was_dropped_before_its_first_step_is_reported_once(op: int) -> None:
    model, optimizer, _ = make(op)
    del _
    with pytest.warns(UserWarning, match=r"(weight|bias)' has a gradient that is not reduced"):
        train(model, optimizer)
    train(model, optimizer)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_one_that_was_used_may_be_dropped(op: int) -> None:
    model, optimizer, distributed = make(op)
    train(model, distributed)
    del distributed
    train(model, optimizer)


def test_one_that_was_synchronized_may_be_dropped() -> None:
    model, optimizer, distributed = make()
    model(torch.ones(1, 2)).sum().backward()
    distributed.synchronize()
    del distributed
    train(model, optimizer)


@pytest.mark.parametrize("is_dropped_first", [True, False])
def test_one_that_was_made_anew_may_be_dropped(is_dropped_first: bool) -> None:
    model, optimizer, distributed = make()
    if is_dropped_first:
        del distributed
    again = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    distributed = None
    train(model, again)


def test_frozen_parameters_and_those_that_are_gone_do_no_harm() -> None:
    model, _, distributed = make()
    model.weight.requires_grad_(False)
    del distributed
    with pytest.warns(UserWarning, match="'bias' has a gradient that is not reduced"):
        model(torch.ones(1, 2)).sum().backward()
    model, _, distributed = make()
    del model, _
    del distributed
