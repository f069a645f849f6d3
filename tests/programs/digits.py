"""The 1,797 digits of 8 x 8 pixels that scikit-learn carries."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

#: Of all ranks together, and so what one process takes. 2 and 3 ranks share it evenly.
BATCH = 96
TRAINED, TESTED = 15 * BATCH, 354


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns images [N, 8, 8] from 0 to 1 with labels to train on, and some to test with.

    They are the same in every run, in an order that mixes the digits.
    """
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = (images[order] / 16).astype(np.float32).reshape(-1, 8, 8)
    labels = labels[order].astype(np.int64)
    tested = slice(TRAINED, TRAINED + TESTED)
    return images[:TRAINED], labels[:TRAINED], images[tested], labels[tested]
