"""Process sets: two models at once, each data-parallel on its half of the ranks.

    perseusrun -np 4 python examples/torch/04_process_sets.py

Even ranks try one learning rate, odd ranks another. The first ranks of the halves, which are in two
sets each, compare the results; all ranks then get the better model.

          ranks     0   1   2   3
          evens     x       x          train together
          odds          x       x      train together
          leaders   x   x              compare
"""

from __future__ import annotations

from collections.abc import Sequence

import digits
import torch
from checks import require, require_equal_parameters
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import perseus.torch.horovod as hvd

LEARNING_RATES = (0.08, 0.02)  # of evens and odds
EPOCHS, BATCH = 2, 60


def process_set_of(ranks: Sequence[int]) -> hvd.ProcessSet:
    """All ranks call this, members or not. One set exists already: that of all ranks."""
    return hvd.global_process_set if len(ranks) == hvd.size() else hvd.add_process_set(ranks)


def train(process_set: hvd.ProcessSet, learning_rate: float, data: TensorDataset) -> nn.Module:
    """Ranks outside the set take no part."""
    images, labels = data.tensors
    model = digits.make_model(seed=process_set.ranks[0])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9),
        named_parameters=model.named_parameters(),
        process_set=process_set,
    )
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            own = batch[process_set.rank() :: process_set.size()]
            optimizer.zero_grad()
            F.cross_entropy(model(images[own]), labels[own]).backward()
            optimizer.step()
    return model


def accuracy(model: nn.Module, test: TensorDataset, process_set: hvd.ProcessSet) -> torch.Tensor:
    images, labels = test[process_set.rank() :: process_set.size()]
    right = digits.recognised(model, images, labels)
    return hvd.allreduce(right, op=hvd.Sum, process_set=process_set) / len(test)


def main() -> None:
    hvd.init(process_sets="dynamic")
    torch.set_num_threads(1)  # one process a core
    ranks = range(hvd.size())
    halves = [process_set_of(half) for half in (ranks[0::2], ranks[1::2]) if half]
    leaders = process_set_of(ranks[:2])
    half = hvd.rank() % 2
    mine = halves[half]

    data, test = digits.load()
    model = train(mine, LEARNING_RATES[half], data)
    require_equal_parameters(model, mine)
    reached = accuracy(model, test, mine)

    # Leaders know both results; each tells its own half.
    of_halves = torch.zeros(len(halves))
    if leaders.included():
        of_halves = hvd.allgather(reached[None], process_set=leaders)
        print(f"lr {LEARNING_RATES[half]}: accuracy {100 * reached.item():.1f} %", flush=True)
    of_halves = hvd.broadcast(of_halves, root_rank=mine.ranks[0], process_set=mine)

    best = int(of_halves.argmax())
    hvd.broadcast_parameters(model.state_dict(), root_rank=best)
    require_equal_parameters(model)
    final = accuracy(model, test, hvd.global_process_set).item()
    if hvd.rank() == 0:
        print(f"all {hvd.size()} ranks go on with lr {LEARNING_RATES[best]}: {100 * final:.1f} %")
    require(abs(final - of_halves.max().item()) < 1e-6, "this is not the better model")
    require(final > 0.9, "the digits were not learnt")


if __name__ == "__main__":
    main()
