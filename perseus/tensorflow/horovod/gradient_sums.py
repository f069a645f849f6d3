"""Sums of the gradients of several backward passes, in variables that are local to this rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from perseus.tensorflow.horovod.util import reference, tensorflow_variable

__all__ = ["GradientSums", "local_variable"]

_COLLECTIONS = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES, "aggregating_collection"]


class GradientSums:
    """Adds up gradients eagerly, in functions, and in v1 graphs.

    In v1 graphs the sums are local variables: run tf.compat.v1.local_variables_initializer(), as a
    MonitoredSession does.

    Args:
      passes: how many passes make a step.
      sparse_as_dense: convert IndexedSlices to tensors, because only tensors can be added up.
      name: a part of the variables' names.
    """

    def __init__(self, passes: int, sparse_as_dense: bool, name: str = "") -> None:
        self._passes = passes
        self._sparse_as_dense = sparse_as_dense
        self._name = name
        self._count: Any = None
        self._of_variables: dict[Any, Any] = {}

    @property
    def counter(self) -> Any:
        """How many passes of the present step have been added up, as a variable."""
        # Variables that a function makes must outlive its first trace.
        with tf.init_scope():
            if self._count is None:
                self._count = local_variable(tf.zeros([], tf.int64), f"{self._name}_counter")
        return self._count

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], Any]:
        """Adds gradients, none of which may be None.

        Returns the sums so far, and whether this is the last pass of a step. Raises ValueError for
        IndexedSlices unless sparse_as_dense is set.
        """
        counter = self.counter
        dense = [self._dense(gradient) for gradient in gradients]
        sums = self._sums(variables, dense)
        totals = [
            tf.identity(total.assign_add(gradient))
            for total, gradient in zip(sums, dense, strict=True)
        ]
        with tf.control_dependencies(totals):
            count = tf.identity(counter.assign_add(1))
        return totals, tf.equal(count % self._passes, 0)

    def clear(self, variables: Iterable[Any]) -> list[Any]:
        """Resets the sums of these variables and the count of passes."""
        zeroed = [_zeroed(self._of_variables[reference(each)]) for each in variables]
        return [*zeroed, self.counter.assign(0)]

    def reset(self) -> None:
        """Resets all sums and the count of passes."""
        if self._count is None:
            return
        self.counter.assign(0)
        for total in self._of_variables.values():
            _zeroed(total)

    def _dense(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and "
                "`sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(gradient)

    def _sums(self, variables: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        with tf.init_scope():
            for i, (variable, gradient) in enumerate(zip(variables, gradients, strict=True)):
                key = reference(variable)
                if key not in self._of_variables:
                    # A graph may not know the gradient's shape.
                    zeros = tf.zeros(tensorflow_variable(variable).shape, gradient.dtype)
                    self._of_variables[key] = local_variable(zeros, f"{self._name}_aggregated_{i}")
        return [self._of_variables[reference(variable)] for variable in variables]


def local_variable(value: Any, name: str) -> Any:
    """Returns a variable local to this rank, which is in no checkpoint and no broadcast."""
    if tf.executing_eagerly():
        return tf.Variable(value, trainable=False, name=name.strip("_"))
    return tf.compat.v1.Variable(
        value,
        trainable=False,
        name=name.strip("_"),
        collections=_COLLECTIONS,
        use_resource=True,
    )


def _zeroed(total: Any) -> Any:
    return total.assign(tf.zeros_like(total))
