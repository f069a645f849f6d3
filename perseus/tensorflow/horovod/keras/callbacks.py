"""Callbacks for tf.keras in jobs of several ranks. Every rank must pass them to fit.

Each turns XLA off for a model whose gradients are reduced, because XLA cannot do that.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from perseus._keras import callbacks as _impl
from perseus._keras.binding import bound_class
from perseus.tensorflow import keras_backend

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_bound = functools.partial(bound_class, module=__name__, backend=keras_backend)
_callback = functools.partial(_bound, base=tf.keras.callbacks.Callback)
BroadcastGlobalVariablesCallback = _callback(_impl.BroadcastGlobalVariablesCallback)
MetricAverageCallback = _callback(_impl.MetricAverageCallback)
LearningRateScheduleCallback = _callback(_impl.LearningRateScheduleCallback)
LearningRateWarmupCallback = _callback(_impl.LearningRateWarmupCallback)
BestModelCheckpoint = _bound(_impl.BestModelCheckpoint, base=tf.keras.callbacks.ModelCheckpoint)
