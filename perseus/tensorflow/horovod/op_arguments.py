"""Arguments of ops: tensors, names and attributes; and graphs that call many ops."""

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

# The types in frameworks/tensorflow/ops.cc.
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
    """Returns a value as a tensor; raises TypeError if its type cannot be sent."""
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype not in _SENDABLE:
        raise TypeError(f"tensors of {tensor.dtype.name} cannot be sent")
    return tensor


@contextlib.contextmanager
def refusing(
    operation: OperationKind, kind: str, name: str | None, process_set: ProcessSet
) -> Iterator[None]:
    """Wraps the code of a call before its op. In eager mode, an exception in it counts as the call.

    The other ranks' calls then fail as well. While a graph is built, they are not told: other ranks
    may have built theirs already and wait for the op. They get an error when this rank ends.
    """
    try:
        yield
    except Exception as error:
        number = getattr(process_set, "process_set_id", None)
        if tf.executing_eagerly() and number is not None:
            refusals.refuse_whole(operation, name or kind, number, error)
        raise


def reducing(op: int, prescale_factor: float, postscale_factor: float) -> dict[str, Any]:
    """Returns the attributes of a reduction.

    TensorFlow's attributes are float32, so each factor needs two of them.
    """
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
    """Returns the attributes by which ranks match an op.

    In a graph they match it by the name of its node, which without `name` is made from the
    tensor's. In eager mode, which has no nodes, they match it by `name`, or else by its kind.

    Args:
      kind: such as "HorovodAllreduce".
    """
    place = {"process_set_id": set_id(process_set), "ignore_name_scope": ignore_name_scope}
    if tf.executing_eagerly():
        return {**place, "tensor_name": name or ""}
    return {**place, "name": name or f"{kind}_{node_name(tensor)}"}


def node_name(tensor: Any) -> str:
    """Returns a tensor's name with characters replaced that a node's name cannot have."""
    return normalized(tensor.name)


def short_name(variable: Any) -> str:
    """Returns the last part of a variable's name, such as kernel, for the name of a node.

    It is empty for an eager tensor, which has no name.
    """
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or ""
    return normalized(own_name(name))


def normalized(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def in_graph(
    function: Callable[..., list[Any]], process_set: ProcessSet, *key: Any
) -> Callable[[list[Any]], list[Any]]:
    """Returns `function(*key, process_set, tensors)` as a function of `tensors`.

    In eager mode it becomes a graph, because eager operations run one after the other. Graphs are
    kept, and used again for the same key and types.
    """
    if not tf.executing_eagerly():
        return lambda tensors: function(*key, process_set, tensors)
    # The number in a graph is not valid after shutdown and init.
    graph: Callable[[list[Any]], list[Any]]
    graph = _graph(function, process_set, set_id(process_set), *key)
    return graph


@lru_cache(maxsize=256)
def _graph(
    function: Callable[..., list[Any]], process_set: ProcessSet, number: int, *key: Any
) -> Any:
    def call(tensors: list[Any]) -> list[Any]:
        return function(*key, process_set, tensors)

    return tf.function(call, reduce_retracing=True, autograph=False)
