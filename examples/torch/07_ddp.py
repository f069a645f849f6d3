"""DistributedDataParallel over Perseus, in two ways.

    torchrun --nproc-per-node 2 examples/torch/07_ddp.py
    perseusrun -np 2 python examples/torch/07_ddp.py

As the backend of torch.distributed, Perseus does all of DDP's communication. As a communication
hook, it averages the gradients, and another backend does the rest. Both must train the same model
as one process.
"""

from __future__ import annotations

import digits
import torch
import torch.distributed as dist
from checks import require, require_equal_parameters
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import perseus.torch.horovod as hvd
from perseus.torch.ddp import allreduce_hook

EPOCHS, BATCH, LEARNING_RATE = 2, 60, 0.08
# Sums of float32 are rounded in a different order; see examples/mnist_demo.py.
TOLERANCE = 1e-4


def train(model: nn.Module, data: TensorDataset, ranks: int, rank: int) -> None:
    """Trains as one process would; each rank takes its part of each batch."""
    sampler = DistributedSampler(data, ranks, rank)
    loader = DataLoader(data, BATCH // ranks, sampler=sampler, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()


@torch.no_grad()
def largest_difference(model: nn.Module, reference: nn.Module) -> float:
    """Returns it over all parameters, relative to the largest element of each tensor."""
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


def main() -> None:
    dist.init_process_group("perseus")
    torch.set_num_threads(1)  # one process a core
    ranks, rank = dist.get_world_size(), dist.get_rank()
    require(BATCH % ranks == 0, "the ranks cannot share batches evenly")
    data, test = digits.load()

    by_backend = digits.make_model()
    train(DistributedDataParallel(by_backend), data, ranks, rank)

    by_hook = digits.make_model()
    gloo = dist.new_group(backend="gloo")
    parallel = DistributedDataParallel(by_hook, process_group=gloo)
    parallel.register_comm_hook(hvd.global_process_set, allreduce_hook)
    train(parallel, data, ranks, rank)

    alone = digits.make_model()
    train(alone, data, 1, 0)
    for name, model in {"backend": by_backend, "hook": by_hook}.items():
        require_equal_parameters(model)
        difference = largest_difference(model, alone)
        right = digits.recognised(model, *test.tensors).item()
        if rank == 0:
            accuracy = 100 * right / len(test)
            print(
                f"{name}: accuracy {accuracy:.1f} %, differs by {difference:.1e} from one process"
            )
        require(difference < TOLERANCE, f"{name}: this is not what one process trains")
        require(right > 0.8 * len(test), "the digits were not learnt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
