"""Copies of NumPy arrays, which are brought up to date in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["saved_copies", "saved_copy"]

Arrays = Sequence[npt.NDArray[Any]]


def saved_copies(values: Arrays, last: Arrays) -> list[npt.NDArray[Any]]:
    """Returns copies, in the memory of those that were made last where shape and type are theirs.

    To allocate memory for a copy takes several times as long as to copy.
    """
    return [saved_copy(value, last[i] if i < len(last) else None) for i, value in enumerate(values)]


def saved_copy(value: npt.NDArray[Any], last: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """Returns a copy, in the memory of the last one if shape and type are its."""
    if last is None or (last.shape, last.dtype) != (value.shape, value.dtype):
        return np.array(value)
    np.copyto(last, value)
    return last
