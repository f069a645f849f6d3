"""Perseus's ops, as TensorFlow has them once the plugin is loaded.

`ops` is the module of Python wrappers that tf.load_op_library makes: ops.horovod_allreduce and so
on. The plugin is compiled against nothing of TensorFlow: it finds the C API in the process.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

import perseus_core
from perseus.common.exceptions import HorovodVersionMismatchError

__all__ = ["is_in_loop", "ops"]

#: The first release whose C API has all that the plugin needs.
OLDEST = "2.13"

#: What ranks do together. They wait for each other only, not for what comes before them in a
#: function: automatic control dependencies would have them run one after the other. In the body of
#: a loop they do, since the turns of a loop, of which several may be under way, have one name.
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

    # Ops that a function waits for at its end, but not each for the one before it. Without it they
    # are slower, and as right.
    name = "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS"
    if hasattr(auto_control_deps, name):
        setattr(auto_control_deps, name, _Unordered(getattr(auto_control_deps, name)))


class _Unordered(frozenset[str]):
    """Types of ops, and ours while what is being built is not in a loop."""

    def __contains__(self, op_type: object) -> bool:
        if op_type in _COLLECTIVES:
            return not is_in_loop()
        return super().__contains__(op_type)


def is_in_loop() -> bool:
    """Whether what is being built is in the body of a loop, where operations take turns."""
    from tensorflow.python.ops.control_flow_v2_func_graphs import (
        WhileBodyFuncGraph,
        WhileCondFuncGraph,
    )

    graph = tf.compat.v1.get_default_graph()
    while graph is not None and not isinstance(graph, (WhileBodyFuncGraph, WhileCondFuncGraph)):
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def _call_as_they_are() -> None:
    """Has functions of TensorFlow's call ours as they are, as it does with its own.

    It would else translate each, from its file as that is by then: after an upgrade under a job
    that runs, from lines that belong to another function.
    """
    from tensorflow.python.autograph.core import config

    if hasattr(config, "CONVERSION_RULES") and hasattr(config, "DoNotConvert"):
        config.CONVERSION_RULES = (config.DoNotConvert("perseus"), *config.CONVERSION_RULES)


ops = _load()
