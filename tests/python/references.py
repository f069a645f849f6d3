"""Inputs of every rank, and the results of collectives, computed in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from perseus_core import ReduceOp

Array = npt.NDArray[Any]

INTEGERS = ["uint8", "int8", "uint16", "int16", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
DTYPES = [*INTEGERS, *FLOATS, "bool"]
OPS = [ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]

# Relative error of one rounding, of which a reduction over a few ranks does a few.
_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def rank_input(rank: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """Returns the same on every rank. Integers are small: no sum overflows."""
    generator = np.random.default_rng([seed, rank])
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return np.asarray(generator.uniform(-2, 2, shape)).astype(numpy_dtype(dtype))
    low = 0 if dtype.startswith("u") else -3
    return np.asarray(generator.integers(low, 4, shape)).astype(dtype)


def reduced(inputs: list[Array], op: ReduceOp) -> Array:
    """The reduction in float64; an average of integers is cut off toward zero."""
    wide = np.stack([array.astype(np.float64) for array in inputs])
    dtype = inputs[0].dtype
    if op == ReduceOp.MIN:
        return wide.min(axis=0)
    if op == ReduceOp.MAX:
        return wide.max(axis=0)
    if op == ReduceOp.PRODUCT:
        return wide.prod(axis=0)
    total = wide.sum(axis=0)
    if dtype.kind == "b":
        return (total > 0).astype(np.float64)
    if op == ReduceOp.AVERAGE:
        total = total / len(inputs)
        return np.trunc(total) if dtype.kind in "iu" else total
    return total


def assert_close(result: Array, expected: Array, roundings: int) -> None:
    """Equal but for that many roundings to the result's type, of numbers up to 2 ** ranks."""
    assert result.shape == expected.shape
    unit = _ROUNDING.get(result.dtype.name, 0.0)
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)), 2.0 * roundings)
    np.testing.assert_allclose(
        result.astype(np.float64), expected, rtol=0, atol=unit * scale * (roundings + 1)
    )
