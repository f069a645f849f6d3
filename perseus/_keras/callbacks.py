"""Horovod's callbacks, as classes to put before the class Callback of a Keras.

perseus._keras.binding does so, and sets `_backend`, the backend of that Keras.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import perseus_core
from perseus._keras.backend import Backend
from perseus._keras.distributed import reducers_of
from perseus._keras.variables import (
    model_variables,
    optimizer_variables,
    slots_of,
    without_repeats,
)
from perseus.common import objects
from perseus.common.process_sets import global_process_set
from perseus.common.stacklevel import user_stacklevel

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class _Callback(Protocol):
    """The attributes that a Keras's Callback gives to the classes below."""

    model: Any
    params: dict[str, Any]


if TYPE_CHECKING:
    # The classes below come before these.
    from keras.callbacks import Callback, ModelCheckpoint
else:
    Callback = ModelCheckpoint = object


class WithoutXla(Callback):
    """Turns XLA off for a model whose gradients are reduced, because XLA cannot do that.

    Keras 3 on TensorFlow turns XLA on by itself if there is a GPU. If the user has asked for XLA, a
    warning is given.
    """

    _backend: Backend

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        optimizer = getattr(model, "optimizer", None)
        if reducers_of(optimizer) and self._backend.turn_off_xla(model):
            warnings.warn(
                "jit_compile=True is ignored: XLA cannot reduce gradients over the ranks",
                stacklevel=user_stacklevel(),
            )


class BroadcastGlobalVariablesCallback(WithoutXla):
    """Gives all ranks the root's variables of the model and of the optimizer.

    It does so once, after the first batch, when all variables exist. Variables of metrics, and
    strings, are not changed.

    Args:
      root_rank: a rank of the world.
      device: not needed; Horovod has the argument.
      local_variables: variables of the model that are not changed, nor are the optimizer's that
        belong to them; such as the seeds of random generators that must differ between ranks, or
        layers that only this rank has. ValueError if one is not a variable.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local_vars: list[Any] = []
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Excludes a variable of the model from the broadcast."""
        if not self._backend.is_variable(var):
            raise ValueError("All local variables must be of tf.Variable type.")
        self._local_vars.append(var)

    def on_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        own_slots = slots_of(self.model.optimizer, self._local_vars)
        local = {id(each) for each in [*self._local_vars, *own_slots]}
        state = model_variables(self.model) + optimizer_variables(self.model.optimizer)
        sent = [each for each in without_repeats(state) if id(each) not in local]
        _require_equal(len(sent), "variables to broadcast")
        self._backend.broadcast_variables(sent, self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(WithoutXla):
    """Averages the metrics that the ranks log at the end of an epoch, in place.

    Put it before callbacks that read them. Raises ValueError on all ranks if they log different
    metrics.

    Args:
      device: not needed; Horovod has the argument.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self: Any, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = {} if logs is None else logs
        names = sorted(logs)
        values = [_as_numbers(logs[name]) for name in names]
        shapes = [None if value is None else value.shape for value in values]
        _require_equal(list(zip(names, shapes, strict=True)), "metrics")
        if None in shapes:
            name = names[shapes.index(None)]
            raise ValueError(f"the metric {name} is {logs[name]!r}, which cannot be averaged")
        if not names:
            return
        together = np.concatenate([value.ravel() for value in values])
        averaged = perseus_core.allreduce(together, name="MetricAverageCallback")
        ends = np.cumsum([value.size for value in values])[:-1]
        for name, value, mean in zip(names, values, np.split(averaged, ends), strict=True):
            logs[name] = float(mean[0]) if value.ndim == 0 else mean.reshape(value.shape)


class LearningRateScheduleCallback(WithoutXla):
    """Sets the learning rate to a multiple of `initial_lr` that depends on the epoch.

    Args:
      initial_lr: the rate that is multiplied.
      multiplier: a function of the epoch, counted from 0; or a number, which is raised to the power
        of the epochs since start_epoch.
      start_epoch, end_epoch: the first epoch in which the callback is active, and the first one
        after that.
      staircase: change the rate only once an epoch. If False, it changes with each batch, and the
        multiplier gets the epoch with a fraction, such as 1.5.
      momentum_correction: after a change of the rate, multiply the optimizer's momentum by the same
        factor for one batch. That works if each step reads the momentum: on PyTorch, with
        run_eagerly, and with legacy optimizers of Keras 2. Elsewhere the momentum is a constant in
        the compiled step, and does not change.
      steps_per_epoch: batches in an epoch, if Keras does not know it; ValueError if neither is
        known and staircase is False.

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
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.restore_momentum: Any = None
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self: Any, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._steps_of_an_epoch()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        ended = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or ended:
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._adjust(self.current_epoch + float(batch) / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        if self.restore_momentum is not None:
            self._with_momentum().momentum = self.restore_momentum
            self.restore_momentum = None

    def on_epoch_end(self: Any, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = self._backend.number(self.model.optimizer.learning_rate)

    def _adjust(self: Any, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = self._backend.number(optimizer.learning_rate)
        new = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old and new != old and self._corrects_momentum():
            # Because the velocity contains the old rate: Goyal et al. 2017, section 2.1, remark 2.
            owner = self._with_momentum()
            self.restore_momentum = self._backend.number(owner.momentum)
            owner.momentum = self.restore_momentum * new / old

    def _corrects_momentum(self: Any) -> bool:
        """Returns whether a change of the momentum affects the next step.

        In a compiled step, an attribute that is a number is a constant.
        """
        momentum = getattr(self._with_momentum(), "momentum", None)
        if momentum is None or callable(momentum):
            return False
        return hasattr(momentum, "assign") or self._backend.sees_attributes(self.model)

    def _with_momentum(self: Any) -> Any:
        optimizer = self.model.optimizer
        return getattr(optimizer, "inner_optimizer", None) or optimizer

    def _steps_of_an_epoch(self: Any) -> int:
        steps = self.params.get("steps")
        rows, batch = self.params.get("samples"), self.params.get("batch_size")
        if not steps and rows and batch:  # Keras 2 says so in a graph of TensorFlow 1
            steps = math.ceil(rows / batch)
        if not steps:
            raise ValueError(
                "the number of steps in an epoch is not known before its end; pass "
                f"steps_per_epoch to {type(self).__name__}"
            )
        return int(steps)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate batch by batch from initial_lr / size to initial_lr.

    See Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.2.

    Args:
      initial_lr: the rate at the end, for all ranks together.
      warmup_epochs: how many epochs the warm-up takes.
      verbose: with 1, rank 0 prints a line at the end.

    The other arguments are those of LearningRateScheduleCallback.
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
            initial_lr,
            self._rising,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _rising(self, epoch: float) -> float:
        """Returns the multiplier, which rises from 1 / size to 1 in the last warm-up batch."""
        assert self.steps_per_epoch
        size = perseus_core.size()
        done = epoch + 1.0 / self.steps_per_epoch
        return (done * (size - 1) / self.warmup_epochs + 1) / size

    def on_epoch_end(self: Any, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0 and perseus_core.rank() == 0:
            reached = self._backend.number(self.model.optimizer.learning_rate)
            print(
                f"\nEpoch {epoch + 1}: the learning rate has warmed up to {reached:g}.",
                file=sys.stdout,
                flush=True,
            )


class BestModelCheckpoint(ModelCheckpoint):
    """A ModelCheckpoint of the best model. Set its attribute `filepath` before training.

    The arguments are those of ModelCheckpoint. Raises ValueError when training begins if `filepath`
    is not set.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            # Only the suffix of this name matters; `filepath` replaces it.
            "best.weights.h5" if save_weights_only else "best.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: str | None = None

    def on_train_begin(self: Any, logs: Any = None) -> None:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no filepath; set the attribute before fit")
        super().on_train_begin(logs)


def _as_numbers(value: Any) -> Any:
    """Returns the value as an array; None if it is not a number."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return None


def _require_equal(what: Any, noun: str) -> None:
    """Raises ValueError on all ranks unless the value is the same on all."""
    of_ranks = objects.allgather_object(what, f"keras.{noun}", global_process_set)
    for rank, of_rank in enumerate(of_ranks):
        if of_rank != of_ranks[0]:
            raise ValueError(
                f"the ranks have different {noun}: rank 0 has {of_ranks[0]}, rank {rank} has "
                f"{of_rank}"
            )
