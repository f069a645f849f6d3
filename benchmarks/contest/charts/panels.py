"""What a chart shows: panels of rows, and how their values are written."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contest.appearance import NAMES
from contest.report import bytes_text

Row = Mapping[str, Any]
Value = Callable[[Row], float]


@dataclass(frozen=True)
class Panel:
    """A part of a chart: a line or a bar for each contender."""

    title: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Scale:
    """How values are computed from a row and written."""

    text: Callable[[float], str]
    value: Value = field(default=lambda row: row["median"])


def three_digits(value: float) -> str:
    """1234.5 -> "1,230", 0.0123 -> "0.0123"."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if rounded >= 1000:
        return f"{rounded:,.0f}"
    text = f"{rounded:.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(microseconds: float) -> str:
    """14.31 -> "14.3 µs", 1084 -> "1.08 ms"."""
    for unit in ("µs", "ms"):
        text = three_digits(microseconds)
        if "," not in text:
            return f"{text} {unit}"
        microseconds /= 1000
    return f"{three_digits(microseconds)} s"


DURATION = Scale(duration)


def measured(rows: Sequence[Row], key: str = "median") -> list[Row]:
    """Returns the rows that have a figure under `key`; exits if none has."""
    found = [row for row in rows if row.get(key) is not None]
    if not found:
        sys.exit("no plot: nothing was measured that could be drawn")
    return found


def panels(rows: Sequence[Row], *keys: str) -> list[Panel]:
    """Returns a panel for each different set of values under `keys`, of the rows with a figure.

    A key that has one value in all rows is not in the titles, unless it is the only key.
    """
    drawn = measured(rows)
    named = [key for key in keys if len({row[key] for row in drawn}) > 1] or keys[:1]
    titles = [", ".join(case_text(key, row[key]) for key in named) for row in drawn]
    return [
        Panel(title, [row for row, its in zip(drawn, titles, strict=True) if its == title])
        for title in dict.fromkeys(titles)
    ]


def case_text(key: str, value: Any) -> str:
    """Returns what readers call a case: ("ranks", 1) -> "1 rank", ("bytes", 1024) -> "1 KiB"."""
    if key == "bytes":
        return bytes_text(value)
    if isinstance(value, int):
        return f"{value:,} {key if value != 1 else key.removesuffix('s')}"
    name = re.sub(r"^(all (\d+ )?gradients of|step of) | at once$", "", str(value))
    return NAMES.get(name, name)


def values(rows: Sequence[Row], key: str) -> list[Any]:
    """Returns the different values under `key`, in order of appearance."""
    return list(dict.fromkeys(row[key] for row in rows))
