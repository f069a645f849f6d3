"""Models whose parts live on different ranks.

perseus.pipeline.layerwise trains stages that have objectives of their own. The names below are
imported, and PyTorch with them, when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

#: Where each public name lives.
_HOMES = {
    name: "perseus.pipeline.layerwise"
    for name in ("RBM", "Autoencoder", "LayerWise", "LocalLoss", "Stage", "StageError")
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
