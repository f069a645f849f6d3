"""Ranks that lack the state get it from those that have it, and all have rank 0's afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import perseus.torch.horovod as hvd
import perseus_core as core
from perseus.common import state_sources
from perseus.common.state_sources import Group

pytestmark = pytest.mark.usefixtures("horovod")


LAST = torch.channels_last


class Odd(torch.nn.Module):
    """Has tensors of many kinds, the same on ranks of one seed but for `own`."""

    def __init__(self, seed: int, own: float) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.large = torch.nn.Parameter(torch.randn(70_001))
        self.weight = torch.nn.Parameter(torch.randn(30, 20))
        self.transposed = torch.nn.Parameter(torch.randn(20, 30).t())
        self.frozen = torch.nn.Parameter(torch.randn(9).bfloat16(), requires_grad=False)
        self.tied = self.weight
        self.register_buffer("steps", torch.tensor(seed))
        self.register_buffer("mask", torch.rand(13) > 0.5)
        self.register_buffer("bytes", torch.randint(0, 255, (3,), dtype=torch.uint8))
        self.register_buffer("empty", torch.empty(0, 4))
        self.register_buffer("channels", torch.randn(2, 3, 4, 4).to(memory_format=LAST))
        self.register_buffer("own", torch.full((6,), own))


def trained(has_state: bool) -> tuple[Odd, torch.optim.Adam]:
    """Adam with its state, which a rank that lacks the state does not have yet."""
    model = Odd(1 if has_state else 2, float(hvd.rank()))
    rate = 0.1 if has_state else 0.2
    optimizer = torch.optim.Adam([model.large, model.weight, model.transposed], lr=rate)
    if has_state:
        for parameter in model.parameters():
            parameter.grad = parameter.detach().clone() if parameter.requires_grad else None
        optimizer.step()
    return model, optimizer


def bits(model: Odd, optimizer: torch.optim.Adam) -> list[tuple[str, bytes]]:
    of_model = [*model.state_dict().items()]
    of_optimizer = [
        (f"{number}.{name}", value)
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    ]
    return [
        (name, tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in of_model + of_optimizer
    ]


@pytest.mark.parametrize("are_apart", [False, True])
@pytest.mark.parametrize("lacking", [1, 2])
def test_all_ranks_have_rank_0_s_state_afterwards(
    are_apart: bool, lacking: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = list(range(max(1, hvd.size() - lacking)))
    if are_apart:  # as if each rank had a host of its own

        def apart(hosts: Sequence[Sequence[int]], holders: Sequence[int]) -> list[Group]:
            others = [rank for rank in range(hvd.size()) if rank not in holders]
            return [Group(tuple(holders), tuple(others))]

        monkeypatch.setattr(state_sources, "groups_of", apart)
    expected = hvd.broadcast_object(bits(*trained(True)))
    model, optimizer = trained(hvd.rank() in holders)
    before = [tensor.data_ptr() for tensor in model.state_dict().values()]
    state = hvd.elastic.TorchState(model, optimizer, epoch=hvd.rank())
    state._commits = 5 if hvd.rank() in holders else 0
    assert state.needs_sync() == (hvd.size() > 1)
    state.sync_from_holders()
    state.has_synced()
    assert bits(model, optimizer) == expected
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == before
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert (state.epoch, state._commits, state.needs_sync()) == (0, 5, False)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    state.restore()
    assert bits(model, optimizer) == expected


def test_ranks_that_have_the_state_give_a_part_each_and_receive_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = hvd.size()
    if size == 1:
        pytest.skip("nobody lacks the state")
    sources = tuple(range(max(1, size - 2)))  # of 4 ranks, the third has the state and gives none
    group = Group(sources, (size - 1,))
    monkeypatch.setattr(state_sources, "groups_of", lambda hosts, holders: [group])
    large = torch.arange(300_000) if hvd.rank() < size - 1 else torch.zeros(300_000).long()
    model = torch.nn.Module()
    model.register_buffer("large", large)
    state = hvd.elastic.TorchState(model)
    state._commits = int(hvd.rank() < size - 1)
    assert state.needs_sync()
    before = core.counters()["bytes_broadcast"]
    state.sync_from_holders()
    moved = core.counters()["bytes_broadcast"] - before
    assert torch.equal(model.large, torch.arange(300_000))
    share = large.nbytes / len(sources)
    wanted = {size - 1: large.nbytes, **dict.fromkeys(sources, share)}.get(hvd.rank(), 0)
    assert wanted <= moved + 64 < wanted + 10_000


def test_ranks_that_have_other_tensors_are_told() -> None:
    if hvd.size() == 1:
        pytest.skip("nobody lacks the state")
    lacks = hvd.rank() == hvd.size() - 1
    model = torch.nn.Linear(4, 5, bias=not lacks)
    state = hvd.elastic.TorchState(model)
    state._commits = int(not lacks)
    assert state.needs_sync()
    last = hvd.size() - 1
    wanted = f"state of rank {last} has 1 tensors, that of rank 0 2; tensor 0 is 'weight' on"
    with pytest.raises(ValueError, match=rf"{wanted} rank {last} and 'bias' on rank 0\. All ranks"):
        state.sync_from_holders()


def test_ranks_that_have_other_shapes_are_told() -> None:
    if hvd.size() == 1:
        pytest.skip("nobody lacks the state")
    lacks = hvd.rank() == hvd.size() - 1
    model = torch.nn.Linear(4, 6 if lacks else 5)
    state = hvd.elastic.TorchState(model)
    state._commits = int(not lacks)
    assert state.needs_sync()
    with pytest.raises(core.MismatchError, match=r"float32\[6\], rank 0 float32\[5\]"):
        state.sync_from_holders()
    hvd.shutdown()
    hvd.init()
