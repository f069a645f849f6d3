"""Horovod's reductions, and its older argument that chooses between two of them."""

from __future__ import annotations

import warnings

from perseus.common.stacklevel import user_stacklevel
from perseus_core import ReduceOp
from perseus_core.arguments import whole_number

# Plain ints, because scripts compare and print them.
Average = int(ReduceOp.AVERAGE)
Sum = int(ReduceOp.SUM)
Adasum = int(ReduceOp.ADASUM)
Min = int(ReduceOp.MIN)
Max = int(ReduceOp.MAX)
Product = int(ReduceOp.PRODUCT)

_NAMES = {
    Average: "Average",
    Sum: "Sum",
    Adasum: "Adasum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
}


def resolve_op(op: int | None, average: bool | None) -> int:
    """Returns the reduction that a call's `op` or its deprecated `average` selects."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average; give only one of them.")
        return checked_op(op)
    if average is None:
        return Average
    warnings.warn(
        "average is deprecated; give op instead", DeprecationWarning, stacklevel=user_stacklevel()
    )
    return Average if average else Sum


def checked_op(op: int) -> int:
    """Returns the number of a reduction; TypeError or ValueError if there is none."""
    if type(op) is int and op in _NAMES:
        return op
    known = ", ".join(f"{name} ({each})" for each, name in _NAMES.items())
    try:
        number = whole_number("op", op)
    except TypeError:
        raise TypeError(f"op is {op!r}; it must be a reduction: {known}") from None
    if number not in _NAMES:
        raise ValueError(f"op is {number}, which is not a reduction; there are {known}")
    return number
