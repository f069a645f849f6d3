"""OpenCLIP's contrastive loss, which gathers the features of all ranks by Horovod."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from conftest import RunRanks

pytest.importorskip("torch")
PACKAGE = importlib.util.find_spec("open_clip")
if PACKAGE is None or PACKAGE.origin is None:
    pytest.skip("open_clip is not installed", allow_module_level=True)

# The package itself needs torchvision and more; the loss stands alone.
LOSS = Path(PACKAGE.origin).with_name("loss.py")
PROGRAM = f"""
import runpy
import torch
import horovod.torch as hvd

ClipLoss = runpy.run_path({str(LOSS)!r})["ClipLoss"]
hvd.init()
rank, size, batch = hvd.rank(), hvd.size(), 3
generator = torch.Generator().manual_seed(7)
images, texts = torch.randn(2, size * batch, 8, generator=generator, dtype=torch.float64)


def make():
    torch.manual_seed(11)
    towers = torch.nn.ModuleList(torch.nn.Linear(8, 4, dtype=torch.float64) for _ in range(2))
    return towers, torch.optim.SGD(towers.parameters(), lr=0.5)


def step(towers, optimizer, loss, images, texts):
    optimizer.zero_grad()
    value = loss(towers[0](images), towers[1](texts), 2.0)
    value.backward()
    optimizer.step()
    return value.detach()


for gather_with_grad in (False, True):
    towers, optimizer = make()
    hvd.broadcast_parameters(towers.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=towers.named_parameters())
    parted = ClipLoss(
        gather_with_grad=gather_with_grad, rank=rank, world_size=size, use_horovod=True
    )
    whole_towers, whole_optimizer = make()
    # Without gradients, each rank has that of its own features alone; with them, allgather's
    # backward averages, as Horovod's does. The optimizer averages once more.
    whole_optimizer.param_groups[0]["lr"] /= size
    for _ in range(3):
        mine = slice(rank * batch, (rank + 1) * batch)
        value = step(towers, optimizer, parted, images[mine], texts[mine])
        whole = step(whole_towers, whole_optimizer, ClipLoss(), images, texts)
        torch.testing.assert_close(hvd.allreduce(value), whole, rtol=1e-12, atol=0)
        for ours, theirs in zip(towers.parameters(), whole_towers.parameters()):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    print(gather_with_grad, "right")
"""


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.long), 3])
def test_ranks_together_have_the_loss_and_gradients_of_one_process(
    run_ranks: RunRanks, size: int
) -> None:
    result = run_ranks(size, PROGRAM, options=("--drop-in",))
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2 * size
    assert all(line.endswith("right") for line in result.stdout.splitlines())
