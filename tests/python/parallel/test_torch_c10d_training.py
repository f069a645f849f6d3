"""DistributedDataParallel and FSDP over Perseus train as one process does on all ranks' data."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch_groups import group, rank, same, size

import perseus.torch.horovod as hvd

__all__ = ["group"]  # which every test uses

# PyTorch's own, where it defines and shards optimizers.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")

DDP = torch.nn.parallel.DistributedDataParallel


def network() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    ).double()


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size() * 4, 6, dtype=torch.float64, generator=generator)


def train(model: torch.nn.Module, data: list[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x in data:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def test_ddp_trains_as_one_process_does() -> None:
    plain = network()
    plain[1] = torch.nn.Identity()  # whose statistics would be those of the own batch
    model = DDP(copy.deepcopy(plain), bucket_cap_mb=0.0005)
    train(model, [batch(step).chunk(size())[rank()] for step in range(5)])
    train(plain, [batch(step) for step in range(5)])
    for ours, expected in zip(model.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)


def test_ddp_with_a_communication_hook_of_pytorchs() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DDP(network().float())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    model(torch.ones(4, 6) * (rank() + 1)).sum().backward()
    grad = next(model.parameters()).grad
    gathered = [torch.zeros_like(grad) for _ in range(size())]
    dist.all_gather(gathered, grad)
    for other in gathered:
        same(other, grad)


def test_ddp_with_our_communication_hook() -> None:
    from perseus.torch.ddp import allreduce_hook

    plain = network()
    plain[1] = torch.nn.Identity()
    model = DDP(copy.deepcopy(plain), bucket_cap_mb=0.0005)
    model.register_comm_hook(hvd.global_process_set, allreduce_hook)
    train(model, [batch(step).chunk(size())[rank()] for step in range(5)])
    train(plain, [batch(step) for step in range(5)])
    for ours, expected in zip(model.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)


class Layers(torch.nn.Module):
    """A forward pass takes some of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor, order: tuple[int, ...] = (0, 1, 2)) -> torch.Tensor:
        for i in order:
            x = torch.tanh(self.layers[i](x))
        return x


def own_part(step: int) -> torch.Tensor:
    return batch(step).chunk(size())[rank()]


def assert_close(model: torch.nn.Module, reference: torch.nn.Module) -> None:
    for ours, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    "options, order",
    [
        ({}, (0, 1, 2)),
        ({"bucket_cap_mb": 25}, (0, 1, 2, 1, 0)),
        ({"gradient_as_bucket_view": True}, (0, 1, 2)),
        ({"static_graph": True}, (0, 2)),
        ({"find_unused_parameters": True}, (0, 2)),
    ],
)
def test_ddp_with(options: dict, order: tuple[int, ...]) -> None:
    reference = Layers().double()
    model = DDP(copy.deepcopy(reference), **{"bucket_cap_mb": 0.0005, **options})
    ours = torch.optim.SGD(model.parameters(), lr=0.05)
    alone = torch.optim.SGD(reference.parameters(), lr=0.05)
    for step in range(4):
        ours.zero_grad()
        model(own_part(step), order).square().mean().backward()
        ours.step()
        alone.zero_grad()
        reference(batch(step), order).square().mean().backward()
        alone.step()
    assert_close(model.module, reference)


def test_ddp_where_each_rank_uses_other_parameters() -> None:
    reference = Layers().double()
    model = DDP(copy.deepcopy(reference), find_unused_parameters=True)

    def order(step: int, of_rank: int) -> tuple[int, int]:
        return (0, 1 + (step + of_rank) % 2)

    ours = torch.optim.SGD(model.parameters(), lr=0.05)
    alone = torch.optim.SGD(reference.parameters(), lr=0.05)
    for step in range(4):
        ours.zero_grad()
        model(own_part(step), order(step, rank())).square().mean().backward()
        ours.step()
        alone.zero_grad()
        for r, part in enumerate(batch(step).chunk(size())):
            (reference(part, order(step, r)).square().mean() / size()).backward()
        alone.step()
    assert_close(model.module, reference)


def test_ddp_without_sync_adds_up() -> None:
    reference = Layers().double()
    model = DDP(copy.deepcopy(reference))
    with model.no_sync():
        for step in range(2):
            model(own_part(step)).square().mean().backward()
    model(own_part(2)).square().mean().backward()
    for step in range(3):
        reference(batch(step)).square().mean().backward()
    for ours, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("by_initial_size", [True, False])
def test_ddp_with_uneven_numbers_of_batches(by_initial_size: bool) -> None:
    """Rank r has r + 1 of them."""
    reference = Layers().double()
    model = DDP(copy.deepcopy(reference), bucket_cap_mb=0.0005)
    ours = torch.optim.SGD(model.parameters(), lr=0.05)
    alone = torch.optim.SGD(reference.parameters(), lr=0.05)
    with model.join(divide_by_initial_world_size=by_initial_size):
        for step in range(rank() + 1):
            ours.zero_grad()
            model(own_part(step)).square().mean().backward()
            ours.step()
    for step in range(size()):
        alone.zero_grad()
        active = range(step, size())
        for r in active:
            loss = reference(batch(step).chunk(size())[r]).square().mean()
            (loss / (size() if by_initial_size else len(active))).backward()
        alone.step()
    # The last rank has made all steps, and its model has gone to the others.
    assert_close(model.module, reference)


def test_the_zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    reference = Layers().double()
    model = DDP(copy.deepcopy(reference))
    ours = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    alone = torch.optim.Adam(reference.parameters(), lr=0.01)
    for step in range(3):
        ours.zero_grad()
        model(own_part(step)).square().mean().backward()
        ours.step()
        alone.zero_grad()
        reference(batch(step)).square().mean().backward()
        alone.step()
    assert_close(model.module, reference)
    ours.consolidate_state_dict(to=0)
    if rank() == 0:
        assert len(ours.state_dict()["state"]) == 6


def fully_sharded(make_optimizer: Callable, steps: int = 4):
    """Returns a network in shards, its optimizer, and the same trained in one process."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no fully_shard")
    from torch.distributed.device_mesh import init_device_mesh

    plain = network()
    plain[1] = torch.nn.Identity()
    model = copy.deepcopy(plain)
    mesh = init_device_mesh("cpu", (size(),))
    for layer in (model[0], model[3], model):
        fsdp.fully_shard(layer, mesh=mesh)
    ours, alone = make_optimizer(model.parameters()), make_optimizer(plain.parameters())
    for step in range(steps):
        ours.zero_grad()
        model(own_part(step)).square().mean().backward()
        ours.step()
        alone.zero_grad()
        plain(batch(step)).square().mean().backward()
        alone.step()
    return model, ours, plain


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        lambda params: torch.optim.Adam(params, lr=0.01, eps=1e-3),
    ],
    ids=["sgd", "adam"],
)
def test_fully_shard_trains_as_one_process_does(make_optimizer: Callable) -> None:
    model, _, plain = fully_sharded(make_optimizer)
    for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), expected, rtol=1e-11, atol=1e-13)


def test_a_distributed_checkpoint_gives_back_what_was_saved(tmp_path) -> None:
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    model, optimizer, _ = fully_sharded(lambda params: torch.optim.Adam(params, lr=0.01))
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def state() -> dict:
        return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))

    folder = [str(tmp_path)]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save(state(), checkpoint_id=folder[0])
    saved = [param.full_tensor().clone() for param in model.parameters()]
    model(own_part(9)).square().mean().backward()
    optimizer.step()
    loaded = state()
    checkpoint.load(loaded, checkpoint_id=folder[0])
    set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    for param, before in zip(model.parameters(), saved, strict=True):
        same(param.full_tensor(), before)
    dist.barrier()


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_fsdp_trains_as_one_process_does(use_orig_params: bool) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    if "priority" not in inspect.signature(torch.cpu.Stream.__init__).parameters:
        pytest.skip("this PyTorch has no FullyShardedDataParallel for the CPU")
    plain = network()
    plain[1] = torch.nn.Identity()
    model = FSDP(
        copy.deepcopy(plain), device_id=torch.device("cpu"), use_orig_params=use_orig_params
    )
    train(model, [own_part(step) for step in range(5)])
    train(plain, [batch(step) for step in range(5)])
    with FSDP.summon_full_params(model):
        for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.view_as(expected), expected, rtol=1e-11, atol=1e-13)
