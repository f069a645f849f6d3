"""Sparse gradients that not every rank has in every step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from twin_training import Run, everyone  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.rows = torch.nn.Embedding(6, 3, sparse=True)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.rows(indices).square().sum()


def indices(step: int, rank: int) -> torch.Tensor:
    return torch.tensor([(step + rank) % 6, (2 * step) % 6])


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_a_rank_without_a_gradient_takes_part_with_no_rows(sparse_as_dense):
    hvd.init()
    run = Run(
        Table(), lambda params: torch.optim.SGD(params, lr=0.1), sparse_as_dense=sparse_as_dense
    )
    run.train(1, lambda model, step, rank: model(indices(step, rank)))
    for step in range(1, 6):
        used = [rank for rank in everyone() if (rank + step) % 3]
        run.optimizer.zero_grad()
        if hvd.rank() in used:
            run.model(indices(step, hvd.rank())).backward()
        run.optimizer.step()
        run.alone.zero_grad()
        for rank in used:
            (run.reference(indices(step, rank)) / hvd.size()).backward()
        run.alone.step()
        torch.testing.assert_close(run.model.rows.weight, run.reference.rows.weight)
