"""Checks of numbers and names that callers pass. Each error names the argument."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

__all__ = ["number_or_any", "plain_text", "real_number", "row_counts", "whole_number"]

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)


def whole_number(what: str, value: Any) -> int:
    """Returns the value as an int.

    Raises TypeError if it is not a whole number, ValueError if it does not fit in 32 bits.
    """
    if type(value) is int and value in _INT32:
        return value
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {_shown(value)}; it takes a whole number") from None
    if number not in _INT32:
        raise ValueError(f"{what} is {number}; it must fit in 32 bits")
    return number


def number_or_any(what: str, value: Any, number_of_any: int) -> int:
    """Returns the value as an int of 0 or more; None gives the number that stands for any."""
    if value is None:
        return number_of_any
    number = whole_number(what, value)
    if number < 0:
        raise ValueError(f"{what} is {number}; it must be 0 or more, or None for any")
    return number


def real_number(what: str, value: Any) -> float:
    """Returns the value as a float; raises TypeError if it is not a number. Text is refused."""
    if type(value) is float:
        return value
    if not isinstance(value, (str, bytes, bytearray)):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise TypeError(f"{what} is {_shown(value)}; it takes a number")


def row_counts(splits: Iterable[Any]) -> list[int]:
    """Returns an alltoall's splits as ints; raises ValueError if they are not whole numbers."""
    try:
        rows = [operator.index(count) for count in splits]
    except TypeError:
        rows = None
    if rows is None or not all(count in _INT64 for count in rows):
        raise ValueError(f"splits is {_shown(splits)}; it takes one whole number for each rank")
    return rows


def plain_text(what: str, value: str) -> str:
    """Returns the value if it can be passed to C as UTF-8.

    Raises TypeError if it is not a str, ValueError for a null character or a lone surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is {_shown(value)}; it takes a str")
    if "\0" in value:
        raise ValueError(f"{what} is {_shown(value)}; it may not hold a null character")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{what} is {_shown(value)}; character {error.start} is a lone surrogate, which "
                "UTF-8 does not have"
            ) from None
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of type {type(value).__name__}"
