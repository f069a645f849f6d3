"""What every operation's arguments become: names, process sets, scales."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tensorflow as tf

from perseus.common.process_sets import ProcessSet
from perseus_core.arguments import real_number

__all__ = ["name_of_grouped", "named", "node_name", "scales", "set_id"]


def set_id(process_set: ProcessSet) -> int:
    """The engine's number of a set; ValueError if it is not registered."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {type(process_set).__name__}; it takes a ProcessSet")
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered: give it to init or add_process_set")
    return process_set.process_set_id


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


def name_of_grouped(kind: str, tensors: Any, name: str | None) -> dict[str, Any]:
    """The same for several, which go by the first's name."""
    return named(kind, tensors[0], name, False)


def node_name(tensor: Any) -> str:
    """A tensor's name with what a node's name cannot hold replaced."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", tensor.name)
