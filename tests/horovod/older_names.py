"""A plugin of pytest with names that Horovod's tests of 0.19 use, and that are gone since: one of
Python's, until 3.11, and one of horovod.tensorflow, until 0.20."""

from __future__ import annotations

import inspect
from typing import Any


def pytest_configure(config: Any) -> None:
    if not hasattr(inspect, "getargspec"):
        inspect.getargspec = inspect.getfullargspec  # type: ignore[attr-defined]
    if any("tensorflow" in argument for argument in config.args):
        import horovod.tensorflow.util

        horovod.tensorflow.util._has_eager = True
