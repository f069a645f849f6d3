"""The works that contenders are timed at: work(contender, *, iterations, **options) -> times.

Times are microseconds, one for each iteration. Works run in each rank.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def find(work: str) -> Callable[..., list[float]]:
    """Returns the function that "module.function" names."""
    module, _, function = work.partition(".")
    found: Callable[..., Any] = getattr(
        importlib.import_module(f"contest.works.{module}"), function
    )
    return found
