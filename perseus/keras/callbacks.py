"""Callbacks for keras in jobs of several ranks. Every rank gives them to fit.

Each turns XLA off for a model whose gradients are reduced, which XLA has no way to do.
"""

from __future__ import annotations

import keras

from perseus._keras import callbacks as _impl
from perseus.keras.backend import backend as _backend

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(
    _impl.BroadcastGlobalVariablesCallback, keras.callbacks.Callback
):
    _backend = _backend


class MetricAverageCallback(_impl.MetricAverageCallback, keras.callbacks.Callback):
    _backend = _backend


class LearningRateScheduleCallback(_impl.LearningRateScheduleCallback, keras.callbacks.Callback):
    _backend = _backend


class LearningRateWarmupCallback(_impl.LearningRateWarmupCallback, keras.callbacks.Callback):
    _backend = _backend


class BestModelCheckpoint(_impl.BestModelCheckpoint, keras.callbacks.ModelCheckpoint):
    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq)
