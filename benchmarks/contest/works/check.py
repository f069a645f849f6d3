"""Checks every element of a result, outside the timed part: a fast wrong answer does not count."""

from __future__ import annotations

from typing import Any

import numpy as np


def require(result: Any, elements: int, *values: float) -> None:
    """Raises ArithmeticError unless `result` has this many elements, in equal parts of these
    values."""
    # NumPy would convert an MXNet array element by element.
    found = result.asnumpy() if hasattr(result, "asnumpy") else np.asarray(result)
    if found.shape != (elements,):
        raise ArithmeticError(f"wrong result: {found.size} elements, not {elements}")
    expected = np.array(values, np.float32)
    differs = found.reshape(len(values), -1) != expected[:, np.newaxis]
    if differs.any():
        first = int(differs.argmax())
        right = values[first * len(values) // elements]
        raise ArithmeticError(
            f"wrong result: {differs.sum()} of {elements} elements; element {first} is "
            f"{found[first]:g}, not {right:g}"
        )
