"""Training with keras that survives the loss of ranks: see perseus.common.elastic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from perseus._keras import elastic as _impl
from perseus.common.elastic import State
from perseus.keras.backend import backend as _backend

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
    """`model`, `optimizer` and what else is given by name, as attributes.

    Args:
      model: one that is built: ValueError if it has no variables yet.
      optimizer: the model's, if None.
      kwargs: plain attributes, such as epoch=0, of which sync gives rank 0's last saved values.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(_backend, model, optimizer, **kwargs)


class CommitStateCallback(_impl.CommitStateCallbackImpl, keras.callbacks.Callback):
    """Commits the state after so many batches, and after each epoch. Put it after those that update
    the state.

    Args:
      state: a KerasState.
      batches_per_commit: the more, the less time it takes and the more is lost with a rank.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__(state, batches_per_commit)


class UpdateBatchStateCallback(_impl.UpdateBatchStateCallbackImpl, keras.callbacks.Callback):
    """Sets state.batch to the batch that is done, and to 0 at the end of an epoch.

    An epoch that goes on after a loss is shown as one of the batches that are left.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state)


class UpdateEpochStateCallback(_impl.UpdateEpochStateCallbackImpl, keras.callbacks.Callback):
    """Sets state.epoch to the number of epochs that are done."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
