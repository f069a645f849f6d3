"""Gradients of several backward passes, added up in variables of this rank's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from perseus.tensorflow.horovod.util import reference, tensorflow_variable

__all__ = ["GradientSums", "local_variable"]

_COLLECTIONS = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES, "aggregating_collection"]


class GradientSums:
    """Eagerly, in functions, and in v1 graphs, where the sums are local variables: run
    tf.compat.v1.local_variables_initializer(), as a MonitoredSession does.

    Args:
      passes: how many make a step.
      sparse_as_dense: turns IndexedSlices into tensors, which alone can be added up.
      name: a part of the variables' names.
    """

    def __init__(self, passes: int, sparse_as_dense: bool, name: str = "") -> None:
        self._passes = passes
        self._sparse_as_dense = sparse_as_dense
        self._name = name
        self._count: Any = None
        self._of_variables: dict[Any, Any] = {}

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], Any]:
        """Adds gradients, none of them None. What they add up to so far, and whether this is the
        last pass of a step.

        Raises ValueError for IndexedSlices, unless sparse_as_dense is set.
        """
        dense = [self._dense(gradient) for gradient in gradients]
        sums = self._sums(variables, dense)
        totals = [
            tf.identity(total.assign_add(gradient))
            for total, gradient in zip(sums, dense, strict=True)
        ]
        with tf.control_dependencies(totals):
            count = tf.identity(self._count.assign_add(1))
        return totals, tf.equal(count % self._passes, 0)

    def clear(self, variables: Iterable[Any]) -> list[Any]:
        """The sums of these variables begin anew."""
        return [_zeroed(self._of_variables[reference(each)]) for each in variables]

    def reset(self) -> None:
        """All begin anew, with the first pass of a step."""
        if self._count is None:
            return
        self._count.assign(0)
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
        # Those of a function outlive its first trace.
        with tf.init_scope():
            if self._count is None:
                self._count = local_variable(tf.zeros([], tf.int64), f"{self._name}_counter")
            for i, (variable, gradient) in enumerate(zip(variables, gradients, strict=True)):
                key = reference(variable)
                if key not in self._of_variables:
                    # A graph may not know the gradient's shape.
                    zeros = tf.zeros(tensorflow_variable(variable).shape, gradient.dtype)
                    self._of_variables[key] = local_variable(zeros, f"{self._name}_aggregated_{i}")
        return [self._of_variables[reference(variable)] for variable in variables]


def local_variable(value: Any, name: str) -> Any:
    """A variable of this rank's own, which no checkpoint holds and no broadcast changes."""
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
