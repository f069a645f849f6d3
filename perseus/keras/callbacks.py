"""Callbacks for keras in jobs of several ranks. Every rank must pass them to fit.

Each turns XLA off for a model whose gradients are reduced, because XLA cannot do that.
"""

from __future__ import annotations

import functools

import keras

from perseus._keras import callbacks as _impl
from perseus._keras.binding import bound_class
from perseus.keras.backend import backend

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_callback = functools.partial(
    bound_class, module=__name__, backend=backend, base=keras.callbacks.Callback
)
BroadcastGlobalVariablesCallback = _callback(_impl.BroadcastGlobalVariablesCallback)
MetricAverageCallback = _callback(_impl.MetricAverageCallback)
LearningRateScheduleCallback = _callback(_impl.LearningRateScheduleCallback)
LearningRateWarmupCallback = _callback(_impl.LearningRateWarmupCallback)


class BestModelCheckpoint(_impl.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq)
