"""Types of flags for argparse, which names the flag when a value is refused, and command lines.

Most types return the text unchanged, for the environment of the ranks.
"""

from __future__ import annotations

import math
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable

Check = Callable[[str], str]


def whole_number(low: int = 0, high: float = math.inf) -> Check:
    return _number(int, "whole number", low, high)


def number(low: float = 0, high: float = math.inf) -> Check:
    return _number(float, "number", low, high)


def some_text(text: str) -> str:
    """Accepts anything but nothing, which is what a shell makes of a variable that is not set."""
    if not text.strip():
        raise ArgumentTypeError(f"'{text}' is empty")
    return text


def port(text: str) -> int:
    """Accepts the number of a port, and returns that."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ArgumentTypeError(f"'{text}' is not a port from 1 to 65535")
    return int(text)


def one_of(*words: str) -> Check:
    """Accepts one of these words, in lower or upper case."""

    def check(text: str) -> str:
        if text.lower() not in words:
            raise ArgumentTypeError(f"'{text}' is none of {', '.join(words)}")
        return text

    return check


def _number(kind: Callable[[str], float], name: str, low: float, high: float) -> Check:
    limits = f"from {low} on" if high == math.inf else f"from {low} to {high}"

    def check(text: str) -> str:
        try:
            value = kind(text)
        except ValueError:
            raise ArgumentTypeError(f"'{text}' is not a {name}") from None
        if not low <= value <= high:
            raise ArgumentTypeError(f"{text} is not a {name} {limits}")
        return text

    return check


def words(text: str, what: str) -> list[str]:
    """Splits a command line as a shell does. Raises ValueError, which names `what` holds it."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{what} is {text!r}: {error}") from None
