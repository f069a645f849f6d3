"""What contenders are measured at: functions work(contender, *, iterations, **options) -> times.

The times are microseconds, one for each iteration. They run in each rank.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def find(work: str) -> Callable[..., list[float]]:
    """The function that "module.function" names."""
    module, _, function = work.partition(".")
    found: Callable[..., Any] = getattr(
        importlib.import_module(f"contest.works.{module}"), function
    )
    return found
