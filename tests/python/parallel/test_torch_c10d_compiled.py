"""torch.compile of models that run over the backend "perseus"."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch_groups import group, rank, size

__all__ = ["group"]  # which every test uses

# PyTorch's own, while it compiles.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit", "ignore:.*[Pp]rofiler")


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    dynamo = pytest.importorskip("torch._dynamo")
    if not dynamo.is_dynamo_supported():
        pytest.skip("this PyTorch cannot compile here")
    dynamo.reset()
    yield
    dynamo.reset()


def model() -> torch.nn.Module:
    """With a buffer, which DDP broadcasts before each forward pass."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    made = torch.nn.Sequential(*layers).double()
    made.register_buffer("count", torch.zeros(1))
    return made


def inputs(step: int, of_rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + of_rank)
    return torch.randn(5, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("what", ["around DDP", "below DDP", "a function that calls DDP"])
def test_ddp(what: str) -> None:
    own, reference = model(), model()
    ddp = torch.nn.parallel.DistributedDataParallel
    if what == "below DDP":
        run = ddp(torch.compile(own, backend="aot_eager"))
    elif what == "around DDP":
        run = torch.compile(ddp(own), backend="aot_eager")
    else:
        plain = ddp(own)
        run = torch.compile(lambda x: plain(x), backend="aot_eager")
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        run(inputs(step, rank())).pow(2).mean().backward()
        optimizer.step()
        alone.zero_grad()
        for r in range(size()):
            (reference(inputs(step, r)).pow(2).mean() / size()).backward()
        alone.step()
    for ours, theirs in zip(own.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_collectives_of_a_group_in_a_compiled_function() -> None:
    some = dist.new_group(list(range(size())))

    @torch.compile(backend="aot_eager")
    def total(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, group=some)
        dist.broadcast(y, 0, group=some)
        return y + 1

    assert total(torch.full((3,), rank() + 1.0)).tolist() == [size() * (size() + 1) + 1.0] * 3
    dist.destroy_process_group(some)
