"""Callbacks for keras in jobs of several ranks. Every rank gives them to fit.

Each turns XLA off for a model whose gradients are reduced, which XLA has no way to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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
    _impl.BroadcastGlobalVariablesCallbackImpl, keras.callbacks.Callback
):
    """Gives all ranks the root's variables, of the model and of the optimizer.

    That is done once, after the first batch, when all are there. What metrics have counted stays,
    and so do strings.

    Args:
      root_rank: a rank of the world.
      device: not needed; Horovod has the argument.
      local_variables: variables of the model that stay as they are on each rank, such as the seeds
        of random generators that are to differ; ValueError for what is no variable.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__(_backend, root_rank, device, local_variables)


class MetricAverageCallback(_impl.MetricAverageCallbackImpl, keras.callbacks.Callback):
    """Averages what the ranks log at the end of an epoch, in place: put it before callbacks that
    read it.

    ValueError on all ranks if they log different metrics.

    Args:
      device: not needed; Horovod has the argument.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__(_backend, device)


class LearningRateScheduleCallback(
    _impl.LearningRateScheduleCallbackImpl, keras.callbacks.Callback
):
    """Sets the learning rate to a multiple of `initial_lr` that depends on the epoch.

    Args:
      initial_lr: the rate that is multiplied.
      multiplier: a function of the epoch, counted from 0; or a number, whose power to the epochs
        since start_epoch is taken.
      start_epoch, end_epoch: the first epoch in which it is active, and the first after.
      staircase: changes the rate with each epoch only, not with each batch: between these the
        multiplier is given the epoch with its part that is done, such as 1.5.
      momentum_correction: after a change, multiplies the optimizer's momentum by it for one batch.
        That works where each step reads the momentum: on PyTorch, with run_eagerly, and with legacy
        optimizers of Keras 2. Elsewhere it is a number built into the compiled step, and stays.
      steps_per_epoch: batches in an epoch, if Keras cannot tell; ValueError if it cannot and
        staircase is False.

    Logs the rate as "lr".
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__(
            _backend,
            initial_lr,
            multiplier,
            start_epoch,
            end_epoch,
            staircase,
            momentum_correction,
            steps_per_epoch,
        )


class LearningRateWarmupCallback(_impl.LearningRateWarmupCallbackImpl, keras.callbacks.Callback):
    """Raises the learning rate batch by batch from initial_lr / size to initial_lr.

    See Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.2.

    Args:
      initial_lr: the rate at the end, for all ranks together.
      warmup_epochs: epochs that it takes.
      verbose: with 1, rank 0 prints a line at the end.

    The others are as those of LearningRateScheduleCallback.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            _backend, initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose
        )


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """ModelCheckpoint of the best model, whose `filepath` is set after it is made; ValueError if it
    is not when training begins. The arguments are ModelCheckpoint's.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            # Of the form that is asked for here; where it is to be comes later.
            "best.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: str | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no filepath; set the attribute before fit")
        super().on_train_begin(logs)
