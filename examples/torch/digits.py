"""The data and model of several examples: 5,000 real MNIST digits, and a small CNN for them."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

sys.path.append(str(Path(__file__).parent.parent))
import mnist_file

TRAIN_PER_DIGIT = 400  # of 500


def load() -> tuple[TensorDataset, TensorDataset]:
    """Returns 4,000 images [1, 28, 28] from 0 to 1 with labels to train on, and 1,000 to test with.

    They are the same in every run, with the same number of each digit.
    """
    images, labels = read()
    generator = torch.Generator().manual_seed(0)
    train, test = [], []
    for digit in range(10):
        own = (labels == digit).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator)]
        train.append(own[:TRAIN_PER_DIGIT])
        test.append(own[TRAIN_PER_DIGIT:])
    first, second = torch.cat(train), torch.cat(test)
    return (
        TensorDataset(images[first], labels[first]),
        TensorDataset(images[second], labels[second]),
    )


def read() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = mnist_file.read()
    return torch.from_numpy(images).reshape(-1, 1, 28, 28), torch.from_numpy(labels)


def make_model(seed: int = 0) -> nn.Module:
    """A CNN with the same parameters in every run.

    It is smooth: at the kinks of ReLU and max-pooling, a rounding difference would change a
    gradient's path, and runs that differ only in rounding would soon differ visibly.
    """
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 64),
        nn.SiLU(),
        nn.Linear(64, 10),
    )


@torch.no_grad()
def recognised(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns how many of the images are recognised."""
    return (model(images).argmax(dim=1) == labels).sum()
