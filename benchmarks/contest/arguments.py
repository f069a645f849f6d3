"""Parses the programs' arguments, and refuses invalid ones before anything is started."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def at_least(minimum: int) -> Callable[[str], int]:
    """Returns a parser of whole numbers that are at least `minimum`."""

    def number(text: str) -> int:
        if not re.fullmatch(r"-?\d+", text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
        if int(text) < minimum:
            raise argparse.ArgumentTypeError(f"at least {minimum}")
        return int(text)

    return number


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("more than 0")
    return number


def share(text: str) -> float:
    """Parses a part of a whole: a number that is more than 0 and at most 1."""
    number = positive(text)
    if number > 1:
        raise argparse.ArgumentTypeError("at most 1")
    return number


def float32_bytes(text: str) -> int:
    """Parses the size of a float32 buffer, in bytes: "64K", "64KiB", "256M", "4"."""
    words = re.fullmatch(r"(\d+)(?:([KMG])(?:i?B)?|B)?", text)
    if words is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4, 64K or 256M")
    count = int(words[1]) << {None: 0, "K": 10, "M": 20, "G": 30}[words[2]]
    if count == 0 or count % 4:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of the 4 bytes of a float32")
    return count


def setting(types: Mapping[str, Callable[[str], float]]) -> Callable[[str], str]:
    """Returns a parser of NAME=NUMBER, where the name determines the type of the number."""

    def checked(text: str) -> str:
        name, _, value = text.partition("=")
        if name not in types:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(types)}")
        try:
            types[name](value)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error}") from error
        return text

    return checked


class Different(argparse.Action):
    """Takes a list of different values: the figures of equal ones could not be told apart."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        listed = list(values or ())
        if twice := [value for value in listed if listed.count(value) > 1]:
            raise argparse.ArgumentError(self, f"{twice[0]} is given twice")
        setattr(namespace, self.dest, listed)
