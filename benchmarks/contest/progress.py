"""A bar that tells how far a program is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def progress(items: Sequence[T], title: str) -> Iterator[T]:
    """The items, with a bar on a terminal."""
    begin = time.monotonic()
    for i, item in enumerate(items):
        if sys.stderr.isatty():
            bar = "#" * (30 * i // len(items))
            seconds = time.monotonic() - begin
            print(f"\r{title} [{bar:30}] {i}/{len(items)} {seconds:.0f} s", end="", file=sys.stderr)
        yield item
    if sys.stderr.isatty():
        print("\r" + " " * 79 + "\r", end="", file=sys.stderr)
