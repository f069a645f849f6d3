"""Loads the plugin with Perseus's ops for TensorFlow.

`ops` is the module of Python wrappers that tf.load_op_library makes, such as ops.horovod_allreduce.
The plugin is not compiled against TensorFlow: it finds the C API in the process.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

import perseus_core
from perseus.common.exceptions import HorovodVersionMismatchError

__all__ = ["is_in_loop", "ops"]

#: The first release whose C API has everything that the plugin needs.
OLDEST = "2.13"

#: The collective ops. In a function they must not wait for the ops before them: automatic control
#: dependencies would run them one after the other. In the body of a loop they must, because all
#: iterations, of which several may be in flight, use the same name.
_COLLECTIVES = (
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
    "PerseusAllreduceEach",
)


def _load() -> Any:
    path = str(Path(perseus_core.__file__).parent / "lib/libperseus_tensorflow.so")
    module = tf.load_op_library(path)
    error = ctypes.CDLL(path).perseus_tensorflow_error
    error.restype = ctypes.c_char_p
    if wrong := error().decode():
        raise HorovodVersionMismatchError("tensorflow", f"{OLDEST} or newer", tf.__version__) from (
            ImportError(wrong)
        )
    _run_side_by_side()
    _call_as_they_are()
    return module


def _run_side_by_side() -> None:
    from tensorflow.python.framework import auto_control_deps

    # Ops in this set are waited for at the end of a function, but not by each other. Without this,
    # they are slower, but still correct.
    name = "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"
    if hasattr(auto_control_deps, name):
        setattr(auto_control_deps, name, _Unordered(getattr(auto_control_deps, name)))


class _Unordered(frozenset[str]):
    """A set of types of ops, to which ours belong while the graph being built is not a loop."""

    def __contains__(self, op_type: object) -> bool:
        if op_type in _COLLECTIVES:
            return not is_in_loop()
        return super().__contains__(op_type)


def is_in_loop() -> bool:
    """Returns whether the graph being built is the body of a loop, which runs ops in order."""
    from tensorflow.python.ops.control_flow_v2_func_graphs import (
        WhileBodyFuncGraph,
        WhileCondFuncGraph,
    )

    graph = tf.compat.v1.get_default_graph()
    while graph is not None and not isinstance(graph, (WhileBodyFuncGraph, WhileCondFuncGraph)):
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def _call_as_they_are() -> None:
    """Makes AutoGraph call our functions without translating them, like TensorFlow's own.

    AutoGraph translates a function from its source file. If an upgrade has replaced the file while
    a job runs, it would translate lines of another function.
    """
    from tensorflow.python.autograph.core import config

    if hasattr(config, "CONVERSION_RULES") and hasattr(config, "DoNotConvert"):
        config.CONVERSION_RULES = (config.DoNotConvert("perseus"), *config.CONVERSION_RULES)


ops = _load()
