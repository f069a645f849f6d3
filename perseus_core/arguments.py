"""Numbers and names that callers give, checked so that a mistake is told by the argument's name."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

__all__ = ["plain_text", "real_number", "row_counts", "whole_number"]

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)


def whole_number(what: str, value: Any) -> int:
    """The value as an int; TypeError for what is none, ValueError for one beyond 32 bits."""
    if type(value) is int and value in _INT32:
        return value
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {_shown(value)}; it takes a whole number") from None
    if number not in _INT32:
        raise ValueError(f"{what} is {number}; it takes a number of 32 bits")
    return number


def real_number(what: str, value: Any) -> float:
    """The value as a float; TypeError for what is no number. Text is none."""
    if type(value) is float:
        return value
    if not isinstance(value, (str, bytes, bytearray)):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise TypeError(f"{what} is {_shown(value)}; it takes a number")


def row_counts(splits: Iterable[Any]) -> list[int]:
    """An alltoall's splits as ints; ValueError for what is no list of whole numbers."""
    try:
        rows = [operator.index(count) for count in splits]
    except TypeError:
        rows = None
    if rows is None or not all(count in _INT64 for count in rows):
        raise ValueError(f"splits is {_shown(splits)}; it takes one whole number for each rank")
    return rows


def plain_text(what: str, value: str) -> str:
    """The value, if it can be a C string of UTF-8; TypeError or ValueError if it cannot."""
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
