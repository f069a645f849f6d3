"""Ranks with different amounts of data: a rank that runs out joins, and the others go on.

    perseusrun -np 3 python examples/torch/05_join.py

Rank r has r + 1 times the batches of rank 0. While a rank waits in join, it contributes zeros to
the others' averages. Once all have joined, training goes on with the next epoch, and any operation
may follow. Every rank also trains alone on everybody's data, in float64, and compares.
"""

from __future__ import annotations

import torch
from checks import require, require_equal_parameters
from torch import nn

import perseus.torch.horovod as hvd

EPOCHS, BATCHES_OF_RANK_0, ROWS, FEATURES = 3, 4, 16, 8
LEARNING_RATE = 0.1

Batch = tuple[torch.Tensor, torch.Tensor]


def batches(rank: int) -> list[Batch]:
    """Rows of features, and the linear function of them that is to be learnt."""
    wanted = torch.arange(1.0, FEATURES + 1, dtype=torch.float64)
    features = torch.randn(
        BATCHES_OF_RANK_0 * (rank + 1),
        ROWS,
        FEATURES,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(rank),
    )
    return [(rows, (rows @ wanted)[:, None]) for rows in features]


def make_model() -> nn.Module:
    model = nn.Linear(FEATURES, 1, dtype=torch.float64)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def train() -> tuple[nn.Module, int]:
    """Returns the model, and the rank that was the last to join."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        named_parameters=model.named_parameters(),
    )
    last = -1
    for _ in range(EPOCHS):
        for batch in batches(hvd.rank()):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        last = hvd.join()
        # The others have taken further steps since this rank's last one.
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    return model, last


def train_alone() -> nn.Module:
    """Does the same alone: sums the gradients, and divides by the number of all ranks."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    data = [batches(rank) for rank in range(hvd.size())]
    for _ in range(EPOCHS):
        for step in range(len(data[-1])):
            optimizer.zero_grad()
            losses = [loss_of(model, own[step]) for own in data if step < len(own)]
            (sum(losses) / hvd.size()).backward()
            optimizer.step()
    return model


def main() -> None:
    hvd.init()
    model, last = train()
    require(last == hvd.size() - 1, f"rank {last} was the last to join")
    require_equal_parameters(model)
    for found, expected in zip(model.parameters(), train_alone().parameters(), strict=True):
        require(torch.allclose(found, expected, rtol=1e-9), "one process finds another model")

    rows = ROWS * len(batches(hvd.rank()))
    everybodys = hvd.allgather(torch.tensor([rows])).tolist()
    if hvd.rank() == 0:
        weights = [f"{weight:.2f}" for weight in model.weight[0].tolist()]
        print(f"rows of the ranks: {everybodys}; rank {last} joined last")
        print(f"found: {', '.join(weights)}")


if __name__ == "__main__":
    main()
