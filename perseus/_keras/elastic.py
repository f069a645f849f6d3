"""The state of a Keras job, and callbacks that keep it up to date.

The callbacks are classes to put before the class Callback of a Keras.
"""

from __future__ import annotations

from typing import Any

from perseus._keras.backend import Backend
from perseus._keras.distributed import reducers_of
from perseus._keras.variables import (
    build_optimizer,
    model_variables,
    optimizer_variables,
    without_repeats,
)
from perseus.common import objects
from perseus.common.elastic import State
from perseus.common.handled_state import SAMPLERS, HandledState
from perseus.common.process_sets import global_process_set

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]


class KerasState(HandledState):
    """A model, its optimizer, and other attributes given by name.

    save keeps the values of the variables of model and optimizer in CPU memory. With TensorFlow it
    does not copy those that are there, as TensorFlow does so when they are next written to. sync
    gives all ranks rank 0's present variables and other attributes.

    Args:
      model: a model that is built; ValueError if it has no variables yet.
      optimizer: None for that of the model.
      kwargs: other attributes, such as epoch=0, or an ElasticSampler.
    """

    _backend: Backend

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError(
                "the model is not built, so it has no variables to save yet: call it, or "
                "model.build(input_shape), before"
            )
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        # Its slots must be restored as well if ranks are lost before the first commit.
        build_optimizer(self.optimizer, model)
        self._variables: list[Any] = []
        self._saved: list[Any] = []
        self._keep()
        super().__init__(_broadcast_object, SAMPLERS, kwargs)

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        self._backend.assign(self._variables, self._saved)
        self._forget_passes()
        super().restore()

    def sync(self) -> None:
        self._forget_passes()
        variables = self._present_variables()
        if self._sources is not None:
            values_of, assign = self._backend.values_of, self._backend.assign
            variables = self._sources.fill_variables(variables, values_of, assign)
        self._backend.broadcast_variables(variables, 0)
        super().sync()
        # Save only when all are synced: if a rank is lost in between, restore must not mix the
        # states of two ranks.
        self._keep()

    def _keep(self) -> None:
        self._variables = self._present_variables()
        self._saved = self._backend.saved_values(self._variables, self._saved)

    def _present_variables(self) -> list[Any]:
        return without_repeats([*model_variables(self.model), *optimizer_variables(self.optimizer)])

    def _forget_passes(self) -> None:
        for reducer in reducers_of(self.optimizer):
            reducer.reset()


class CommitStateCallback:
    """Commits the state after every `batches_per_commit` batches, and after each epoch.

    Args:
      state: a KerasState.
      batches_per_commit: more batches cost less time, but more work is lost with a rank.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state: Any = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self.batches_remaining = self.batches_per_commit
        self.state._later_updates = []

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            for callback in _later_updates(self.state):
                callback.on_batch_end(batch, logs)
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for callback in _later_updates(self.state):
            callback.on_epoch_end(epoch, logs)
        self.commit()

    def commit(self) -> None:
        self.batches_remaining = self.batches_per_commit
        self.state.commit()


def _later_updates(state: Any) -> list[Any]:
    """The callbacks that come after CommitStateCallback, which would update the state too late.

    All callbacks append themselves in the order in which fit has them, and CommitStateCallback
    empties the list in between.
    """
    found: list[Any] = vars(state).setdefault("_later_updates", [])
    return found


class UpdateBatchStateCallback:
    """Sets state.batch to the last finished batch, counted from 0, and to 0 after each epoch.

    An epoch that continues after a loss shows only the batches that are left. A callback cannot end
    an epoch in Keras: fit runs all batches of its data unless it gets data, or steps_per_epoch, for
    those that are left.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state: Any = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.steps_per_epoch = None
        _later_updates(self.state).append(self)

    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback:
    """Sets state.epoch to the number of finished epochs.

    fit may count its epochs from 0, or from an initial_epoch of state.epoch.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state: Any = state
        self.initial_epoch: int = self.state.epoch
        self._is_first = False

    def on_train_begin(self, logs: Any = None) -> None:
        self.initial_epoch = self.state.epoch
        self._is_first = True
        _later_updates(self.state).append(self)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._is_first:
            self.initial_epoch -= epoch
            self._is_first = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1


def _broadcast_object(obj: Any) -> Any:
    return objects.broadcast_object(obj, 0, None, global_process_set)
