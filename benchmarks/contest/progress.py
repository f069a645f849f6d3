"""Shows the progress of a long run on stderr: a bar on a terminal, otherwise occasional lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
WIDTH = 30


def progress(cases: Sequence[T], what: str) -> Iterator[T]:
    """Yields the cases; shows how many are done, and roughly how long the rest will take."""
    began = time.monotonic()
    shown = began
    live = sys.stderr.isatty()
    for done, case in enumerate(cases):
        now = time.monotonic()
        if live or done == 0 or now - shown > 30:
            shown = now
            bar = "#" * (WIDTH * done // len(cases))
            left = f", {(now - began) / done * (len(cases) - done):.0f} s left" if done else ""
            text = f"{what} [{bar:{WIDTH}}] {done}/{len(cases)}{left}"
            print(f"\r{text:78}" if live else text, end="" if live else "\n", file=sys.stderr)
            sys.stderr.flush()
        yield case
    if live:
        print(f"\r{'':78}\r", end="", file=sys.stderr, flush=True)
