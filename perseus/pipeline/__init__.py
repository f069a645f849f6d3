"""Models whose layers are on several ranks.

Pipeline trains a PyTorch model cut into stages (docs/pipeline.md), and LayerWise stages that have
objectives of their own (docs/layer-wise.md). The names are imported, and PyTorch with them, when
they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perseus.pipeline.errors import StageError
    from perseus.pipeline.layerwise.layer_wise import LayerWise
    from perseus.pipeline.pipeline import Pipeline
    from perseus.pipeline.report import Report

__all__ = ["LayerWise", "Pipeline", "Report", "StageError"]

#: The modules that the names are in.
_HOMES = {
    "LayerWise": "layerwise.layer_wise",
    "Pipeline": "pipeline",
    "Report": "report",
    "StageError": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
