"""Training as one of many ranks, and alone on all ranks' data: the numbers must agree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch

import perseus.torch.horovod as hvd


def inputs(step: int, rank: int, rows: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, 4, generator=generator, dtype=torch.float64)


def everyone() -> range:
    return range(hvd.size())


def momentum_sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9)


class Run:
    """The same training twice: on this rank as one of many, and alone with everybody's data."""

    def __init__(
        self,
        model: torch.nn.Module,
        make: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] = momentum_sgd,
        **options,
    ) -> None:
        self.model = model.double()
        self.reference = copy.deepcopy(model)
        self.optimizer = hvd.DistributedOptimizer(
            make(self.model.parameters()), self.model.named_parameters(), **options
        )
        self.alone = make(self.reference.parameters())

    def train(self, steps: int, loss: Callable[[torch.nn.Module, int, int], torch.Tensor]) -> None:
        """loss(model, step, rank): what that rank's batch gives in the step."""
        for step in range(steps):
            self.optimizer.zero_grad()
            loss(self.model, step, hvd.rank()).backward()
            self.optimizer.step()
            self.alone.zero_grad()
            for rank in everyone():
                (loss(self.reference, step, rank) / hvd.size()).backward()
            # A parameter without a gradient takes part with zeros.
            for param in self.reference.parameters():
                if param.grad is None and hvd.size() > 1:
                    param.grad = torch.zeros_like(param)
            self.alone.step()
        same(self.model, self.reference)


def same(model: torch.nn.Module, reference: torch.nn.Module) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


class Parts(torch.nn.Module):
    """Layers of which a forward pass takes some, in any order."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(count))

    def forward(self, x: torch.Tensor, order: Iterable[int]) -> torch.Tensor:
        for i in order:
            x = torch.tanh(self.layers[i](x))
        return x.square().mean()
