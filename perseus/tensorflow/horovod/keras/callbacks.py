"""Callbacks for tf.keras in jobs of several ranks. Every rank gives them to fit.

Each turns XLA off for a model whose gradients are reduced, which XLA has no way to do.
"""

from __future__ import annotations

import tensorflow as tf

from perseus._keras import callbacks as _impl
from perseus._keras import on_tensorflow as _backend

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(
    _impl.BroadcastGlobalVariablesCallback, tf.keras.callbacks.Callback
):
    _backend = _backend


class MetricAverageCallback(_impl.MetricAverageCallback, tf.keras.callbacks.Callback):
    _backend = _backend


class LearningRateScheduleCallback(_impl.LearningRateScheduleCallback, tf.keras.callbacks.Callback):
    _backend = _backend


class LearningRateWarmupCallback(_impl.LearningRateWarmupCallback, tf.keras.callbacks.Callback):
    _backend = _backend


class BestModelCheckpoint(_impl.BestModelCheckpoint, tf.keras.callbacks.ModelCheckpoint):
    pass
