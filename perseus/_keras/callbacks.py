"""Callbacks of Horovod, each to be put before the class Callback of a Keras."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

import perseus_core
from perseus._keras.backend import Backend
from perseus._keras.distributed import reducers_of
from perseus._keras.variables import model_variables, optimizer_variables, without_repeats
from perseus.common import objects
from perseus.common.callers import callers_level
from perseus.common.process_sets import global_process_set

__all__ = [
    "BroadcastGlobalVariablesCallbackImpl",
    "LearningRateScheduleCallbackImpl",
    "LearningRateWarmupCallbackImpl",
    "MetricAverageCallbackImpl",
]


class _Callback(Protocol):
    """What a Keras's Callback gives to those below."""

    model: Any
    params: dict[str, Any]


class WithoutXla:
    """Turns XLA off for a model whose gradients are reduced, which XLA has no way to do.

    Keras 3 on TensorFlow turns it on by itself where there is a GPU. A warning is given if the
    user has asked for it.
    """

    _backend: Backend

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        optimizer = getattr(model, "optimizer", None)
        if reducers_of(optimizer) and self._backend.turn_off_xla(model):
            warnings.warn(
                "jit_compile=True is left out: XLA has no way to reduce gradients over the ranks",
                stacklevel=callers_level(),
            )


class BroadcastGlobalVariablesCallbackImpl(WithoutXla):
    def __init__(
        self,
        backend: Backend,
        root_rank: int,
        device: str = "",
        local_variables: Iterable[Any] | None = None,
    ) -> None:
        super().__init__()
        self._backend = backend
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local_vars: list[Any] = []
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable of the model as it is on each rank."""
        if not self._backend.is_variable(var):
            raise ValueError("All local variables must be of tf.Variable type.")
        self._local_vars.append(var)

    def on_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        local = {id(each) for each in self._local_vars}
        state = model_variables(self.model) + optimizer_variables(self.model.optimizer)
        sent = [each for each in without_repeats(state) if id(each) not in local]
        _require_equal(len(sent), "variables to broadcast")
        self._backend.broadcast_variables(sent, self.root_rank)
        self.broadcast_done = True


class MetricAverageCallbackImpl(WithoutXla):
    def __init__(self, backend: Backend, device: str = "") -> None:
        super().__init__()
        self._backend = backend
        self.device = device

    def on_epoch_end(self: Any, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = {} if logs is None else logs
        names = sorted(logs)
        values = [np.asarray(logs[name], np.float64) for name in names]
        _require_equal(
            [(name, value.shape) for name, value in zip(names, values, strict=True)], "metrics"
        )
        if not names:
            return
        together = np.concatenate([value.ravel() for value in values])
        averaged = perseus_core.allreduce(together, name="MetricAverageCallback")
        ends = np.cumsum([value.size for value in values])[:-1]
        for name, value, mean in zip(names, values, np.split(averaged, ends), strict=True):
            logs[name] = float(mean[0]) if value.ndim == 0 else mean.reshape(value.shape)


class LearningRateScheduleCallbackImpl(WithoutXla):
    def __init__(
        self,
        backend: Backend,
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
        self._backend = backend
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
            logs["lr"] = _number(self.model.optimizer.learning_rate)

    def _adjust(self: Any, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = _number(optimizer.learning_rate)
        new = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old and new != old and self._corrects_momentum():
            # As the velocity holds the old rate: Goyal et al. 2017, section 2.1, remark 2.
            owner = self._with_momentum()
            self.restore_momentum = _number(owner.momentum)
            owner.momentum = self.restore_momentum * new / old

    def _corrects_momentum(self: Any) -> bool:
        """A step that is compiled has an attribute which is a number built in."""
        momentum = getattr(self._with_momentum(), "momentum", None)
        if momentum is None or callable(momentum):
            return False
        return hasattr(momentum, "assign") or self._backend.sees_attributes(self.model)

    def _with_momentum(self: Any) -> Any:
        optimizer = self.model.optimizer
        return getattr(optimizer, "inner_optimizer", None) or optimizer

    def _steps_of_an_epoch(self: Any) -> int:
        steps = self.params.get("steps")
        if not steps:
            raise ValueError(
                "the number of steps in an epoch is not known before its end; give "
                f"steps_per_epoch to {type(self).__name__}"
            )
        return int(steps)


class LearningRateWarmupCallbackImpl(LearningRateScheduleCallbackImpl):
    def __init__(
        self,
        backend: Backend,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            backend,
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
        """From 1 / size to 1, which the last batch of the warm-up has."""
        assert self.steps_per_epoch
        size = perseus_core.size()
        done = epoch + 1.0 / self.steps_per_epoch
        return (done * (size - 1) / self.warmup_epochs + 1) / size

    def on_epoch_end(self: Any, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0 and perseus_core.rank() == 0:
            reached = _number(self.model.optimizer.learning_rate)
            print(
                f"\nEpoch {epoch + 1}: the learning rate has warmed up to {reached:g}.",
                file=sys.stdout,
                flush=True,
            )


def _number(value: Any) -> float:
    """Of a number, a variable or a tensor."""
    return float(value.numpy() if hasattr(value, "numpy") else value)


def _require_equal(what: Any, noun: str) -> None:
    """ValueError on all ranks unless all have the same of something."""
    of_ranks = objects.allgather_object(what, f"keras.{noun}", global_process_set)
    for rank, of_rank in enumerate(of_ranks):
        if of_rank != of_ranks[0]:
            raise ValueError(
                f"the ranks have different {noun}: rank 0 has {of_ranks[0]}, rank {rank} has "
                f"{of_rank}"
            )
