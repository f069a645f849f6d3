"""What every operation's arguments become: names, process sets, scales."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tensorflow as tf

from perseus_core.arguments import real_number

__all__ = ["named", "node_name", "scales"]


def scales(prescale_factor: float, postscale_factor: float) -> dict[str, float]:
    """The attributes for two factors: those of TensorFlow are float32, so each takes two."""
    attributes = {}
    for name, value in (("prescale", prescale_factor), ("postscale", postscale_factor)):
        factor = real_number(f"{name}_factor", value)
        nearest = float(np.float32(factor))
        attributes[f"{name}_factor"] = nearest
        attributes[f"{name}_rest"] = factor - nearest if np.isfinite(nearest) else 0.0
    return attributes


def named(kind: str, tensor: Any, name: str | None, ignore_name_scope: bool) -> dict[str, Any]:
    """The attributes that name an operation, of a `kind` such as "HorovodAllreduce".

    In a graph ranks match it by its node's name, which without `name` comes from the tensor's. In
    eager mode, where there are no nodes, they do by `name`, or by the kind.
    """
    if tf.executing_eagerly():
        return {"tensor_name": name or "", "ignore_name_scope": ignore_name_scope}
    return {
        "name": name or f"{kind}_{node_name(tensor)}",
        "ignore_name_scope": ignore_name_scope,
    }


def node_name(tensor: Any) -> str:
    """A tensor's name with what a node's name cannot hold replaced."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", tensor.name)
