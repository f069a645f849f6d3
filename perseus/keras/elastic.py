"""Training with keras that survives the loss of ranks; see perseus.common.elastic."""

from __future__ import annotations

import functools

import keras

from perseus._keras import elastic as _impl
from perseus._keras.binding import Functions, bound_class
from perseus.common.elastic import drain
from perseus.common.elastic_sampler import ElasticSampler
from perseus.keras.backend import backend

__all__ = [
    "CommitStateCallback",
    "ElasticSampler",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "drain",
    "run",
]

run = Functions(backend).run

_bound = functools.partial(bound_class, module=__name__, backend=backend)
KerasState = _bound(_impl.KerasState)

_callback = functools.partial(_bound, base=keras.callbacks.Callback)
CommitStateCallback = _callback(_impl.CommitStateCallback)
UpdateBatchStateCallback = _callback(_impl.UpdateBatchStateCallback)
UpdateEpochStateCallback = _callback(_impl.UpdateEpochStateCallback)
