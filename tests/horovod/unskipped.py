"""A plugin of pytest that runs tests which a class only skips, as its base class has them."""

from __future__ import annotations

import inspect
from typing import Any


def pytest_pycollect_makeitem(obj: Any) -> None:
    if not inspect.isclass(obj):
        return
    for name, own in list(vars(obj).items()):
        is_test = name.startswith("test") and inspect.isfunction(own)
        if not is_test or not any(hasattr(base, name) for base in obj.__bases__):
            continue
        if "skipTest" in inspect.unwrap(own).__code__.co_names:
            delattr(obj, name)
