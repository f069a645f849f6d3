"""Tests that an optimizer that is made by one rank alone reduces gradients when others join."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import perseus.torch.horovod as hvd  # noqa: E402 (after the check that PyTorch is there)
from perseus_core import driver_link  # noqa: E402


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PERSEUS_RANK", "0")
    monkeypatch.setenv("PERSEUS_SIZE", "1")
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["average", "adasum"])
@pytest.mark.parametrize("is_elastic", [False, True])
def test_gradients_are_reduced_if_ranks_may_join(
    op: object, is_elastic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_link, "is_elastic", lambda: is_elastic)
    model = torch.nn.Linear(2, 2)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=op)
    assert (optimizer._gradients is not None) is is_elastic
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight, before - 0.1)
