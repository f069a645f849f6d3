"""Training with tf.keras that survives the loss of ranks: see perseus.common.elastic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from perseus._keras import elastic as _impl
from perseus._keras import on_tensorflow as _backend

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates `train(state, ...)`: it is begun again from the last commit when ranks are lost."""
    return _backend.run_elastic(func)


class KerasState(_impl.KerasState):
    _backend = _backend


class CommitStateCallback(_impl.CommitStateCallback, tf.keras.callbacks.Callback):
    pass


class UpdateBatchStateCallback(_impl.UpdateBatchStateCallback, tf.keras.callbacks.Callback):
    pass


class UpdateEpochStateCallback(_impl.UpdateEpochStateCallback, tf.keras.callbacks.Callback):
    pass
