"""What the programs for PyTorch share: the digits, a small CNN for them, and what is kept."""

from __future__ import annotations

import digits
import outcome
import torch
from torch import nn
from torch.utils.data import TensorDataset

BATCH = digits.BATCH


def data() -> tuple[TensorDataset, TensorDataset]:
    """Returns images [1, 8, 8] with labels to train on, and to test with."""
    images, labels, tested_images, tested_labels = map(torch.from_numpy, digits.load())
    return (
        TensorDataset(images[:, None], labels),
        TensorDataset(tested_images[:, None], tested_labels),
    )


def make_model(rank: int) -> nn.Module:
    """Returns a model that differs from rank to rank, until rank 0's parameters are broadcast.

    It is smooth: at the kinks of ReLU and max-pooling, a rounding difference would change a
    gradient's path, and runs that differ only in rounding would soon differ visibly.
    """
    torch.manual_seed(rank)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 3 * 3, 32),
        nn.SiLU(),
        nn.Linear(32, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    images, labels = data()[1].tensors
    return float((model(images).argmax(dim=1) == labels).float().mean())


def keep(rank: int, model: nn.Module) -> None:
    parameters = (parameter.detach() for parameter in model.parameters())
    outcome.keep(rank, parameters, "accuracy", accuracy(model))
