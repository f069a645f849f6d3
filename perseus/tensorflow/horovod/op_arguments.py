"""How operations are called: attributes of ops, and graphs of many."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.variable_names import own_name
from perseus_core import OperationKind, refusals
from perseus_core.arguments import real_number

__all__ = [
    "in_graph",
    "matched",
    "node_name",
    "reducing",
    "refusing",
    "sendable",
    "short_name",
]

# As frameworks/tensorflow/ops.cc has them.
_SENDABLE = {
    tf.uint8,
    tf.int8,
    tf.uint16,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.bool,
}


def sendable(value: Any) -> tf.Tensor:
    """It as a tensor; TypeError if ranks cannot send its type."""
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in _SENDABLE:
        raise TypeError(f"tensors of {tensor.dtype.name} cannot be sent")
    return tensor


@contextlib.contextmanager
def refusing(
    operation: OperationKind, kind: str, name: str | None, process_set: ProcessSet
) -> Iterator[None]:
    """For what a call does before its op: eagerly, an exception counts as the call on all ranks.

    While a graph is built other ranks may have theirs already, and wait for an op that will not be;
    they hear of it when this rank ends.
    """
    try:
        yield
    except Exception as error:
        number = getattr(process_set, "process_set_id", None)
        if tf.executing_eagerly() and number is not None:
            refusals.refuse_whole(operation, name or kind, number, error)
        raise


def reducing(op: int, prescale_factor: float, postscale_factor: float) -> dict[str, Any]:
    """How it reduces. Attributes of TensorFlow are float32, so that each factor takes two."""
    attributes: dict[str, Any] = {"reduce_op": op}
    for name, value in (("prescale", prescale_factor), ("postscale", postscale_factor)):
        factor = real_number(f"{name}_factor", value)
        nearest = float(np.float32(factor))
        attributes[f"{name}_factor"] = nearest
        attributes[f"{name}_rest"] = factor - nearest if np.isfinite(nearest) else 0.0
    return attributes


def matched(
    kind: str, tensor: Any, name: str | None, ignore_name_scope: bool, process_set: ProcessSet
) -> dict[str, Any]:
    """What ranks match it by; its `kind` is such as "HorovodAllreduce".

    In a graph they do by its node's name, which without `name` comes from the tensor's. In eager
    mode, where there are no nodes, they do by `name`, or by the kind.
    """
    place = {"process_set_id": set_id(process_set), "ignore_name_scope": ignore_name_scope}
    if tf.executing_eagerly():
        return {**place, "tensor_name": name or ""}
    return {**place, "name": name or f"{kind}_{node_name(tensor)}"}


def node_name(tensor: Any) -> str:
    """A tensor's name with what a node's name cannot hold replaced."""
    return normalized(tensor.name)


def short_name(variable: Any) -> str:
    """Of a variable, such as kernel: as far as a node's name can hold it. Tensors that are there
    already have none."""
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or ""
    return normalized(own_name(name))


def normalized(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def in_graph(
    function: Callable[..., list[Any]], process_set: ProcessSet, *key: Any
) -> Callable[[list[Any]], list[Any]]:
    """`function(*key, process_set, tensors)` of `tensors`: a graph also where TensorFlow runs
    eagerly, and operations would run one after the other.

    Graphs are kept: the same key and the same types do not build another.
    """
    if not tf.executing_eagerly():
        return lambda tensors: function(*key, process_set, tensors)
    # The number that a graph holds is another after shutdown and init.
    return _graph(function, process_set, set_id(process_set), *key)


@lru_cache(maxsize=256)
def _graph(
    function: Callable[..., list[Any]], process_set: ProcessSet, number: int, *key: Any
) -> Any:
    def call(tensors: list[Any]) -> list[Any]:
        return function(*key, process_set, tensors)

    return tf.function(call, reduce_retracing=True, autograph=False)
