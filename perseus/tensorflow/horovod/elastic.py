"""Training that survives the loss of ranks; see perseus.common.elastic."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from perseus._keras.backend import backend_named
from perseus._keras.elastic import KerasState
from perseus.common.elastic import Train, drain, run_fn_with_errors
from perseus.common.elastic_sampler import ElasticSampler
from perseus.common.exceptions import HorovodInternalError
from perseus.common.handled_state import SAMPLERS, HandledState
from perseus.common.process_sets import carried_over
from perseus.tensorflow.horovod.functions import (
    assign,
    broadcast_each,
    broadcast_object,
    broadcast_variables,
    saved_values,
    values_of,
)
from perseus.tensorflow.horovod.mpi_ops import init, shutdown

__all__ = ["ElasticSampler", "TensorFlowKerasState", "TensorFlowState", "drain", "run"]


def run(func: Train) -> Train:
    """Decorates `train(state, ...)`, which restarts from the last commit when ranks are lost."""
    return run_fn_with_errors(func, _reset, _errors)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except tf.errors.UnknownError as error:
        # One of our ops raises it when the job cannot go on.
        if HorovodInternalError.__name__ not in str(error):
            raise
        raise HorovodInternalError(str(error)) from error


class TensorFlowKerasState(KerasState):
    """A model of Keras on TensorFlow, its optimizer, and other attributes.

    Args:
      model: a model that is built; ValueError if it has no variables yet.
      optimizer: None for that of the model.
      backend: not needed; Horovod has the argument.
      kwargs: other attributes, such as epoch=0, or an ElasticSampler.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        self._backend = backend_named("tensorflow")
        super().__init__(model, optimizer, **kwargs)


class TensorFlowState(HandledState):
    """Variables, and other attributes.

    save copies no variables that are in CPU memory, unless they are those of a v1 graph: TensorFlow
    does so when they are next written to. sync gives all ranks rank 0's present variables.

    Args:
      variables: variables of TensorFlow or Keras; None for the global variables of a v1 graph.
      session: runs the graph; None for the default session, if there is one.
      kwargs: other attributes, such as epoch=0, or an ElasticSampler.
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None:
            variables = tf.compat.v1.global_variables()
        self.variables = list(variables)
        self.session = session or tf.compat.v1.get_default_session()
        self._broadcasts: dict[int, Any] = {}  # of a v1 graph, which may be final later
        if self.session is not None:
            with self.session.graph.as_default():
                of_each = broadcast_each(self.variables, root_rank=0)
            self._broadcasts = dict(zip(map(id, self.variables), of_each, strict=True))
        self._saved: list[Any] = []
        self._keep()
        super().__init__(broadcast_object, SAMPLERS, kwargs)

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        assign(self.variables, self._saved, self.session)
        super().restore()

    def sync(self) -> None:
        left = self.variables
        if self._sources is not None:
            values = functools.partial(values_of, session=self.session)
            assign_all = functools.partial(assign, session=self.session)
            left = self._sources.fill_variables(left, values, assign_all)
        if self.session is None:
            broadcast_variables(left, root_rank=0)
        elif left:
            self.session.run([self._broadcasts[id(each)] for each in left])
        super().sync()
        # Save only when all are synced: if a rank is lost in between, restore must not mix the
        # states of two ranks.
        self._keep()

    def _keep(self) -> None:
        self._saved = saved_values(self.variables, self._saved, self.session)


def _reset() -> None:
    with carried_over():
        shutdown()
        init()
