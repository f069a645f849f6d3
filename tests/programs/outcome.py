"""What each rank leaves for scripts/programs.py, which compares it: its weights, and a figure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def keep(rank: int, weights: Iterable[Any], figure: str, value: float) -> None:
    """Keeps a rank's weights, in the order of the model, and how good it is, as `figure` says."""
    named = {f"weight_{number:04}": np.asarray(weight) for number, weight in enumerate(weights)}
    folder = Path(os.environ["PROGRAM_OUTCOME"])
    np.savez(folder / f"{rank}.npz", figure=figure, value=value, **named)
