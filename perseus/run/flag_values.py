"""What the values of flags may be: types for argparse, which names the flag when it refuses one.

They give the text back as it was, for the environment of the ranks.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

Check = Callable[[str], str]


def whole_number(low: int = 0, high: float = math.inf) -> Check:
    return _number(int, "whole number", low, high)


def number(low: float = 0, high: float = math.inf) -> Check:
    return _number(float, "number", low, high)


def one_of(*words: str) -> Check:
    """In small letters or capitals."""

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
