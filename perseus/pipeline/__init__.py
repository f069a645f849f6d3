"""Models whose layers are on several ranks.

Pipeline trains a PyTorch model cut into stages: docs/pipeline.md. Importing this package imports no
framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perseus.pipeline.errors import StageError
    from perseus.pipeline.pipeline import Pipeline
    from perseus.pipeline.report import Report

__all__ = ["Pipeline", "Report", "StageError"]

#: The modules that the names are in.
_HOMES = {"Pipeline": "pipeline", "Report": "report", "StageError": "errors"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
