"""Adds up the gradients of several backward passes on each rank before they are reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from perseus.common.gradient_arguments import checked_passes
from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.tensorflow.horovod.gradient_sums import GradientSums
from perseus.tensorflow.horovod.mpi_ops import size_op
from perseus.tensorflow.horovod.util import reference, references

__all__ = [
    "LocalGradientAggregationHelper",
    "apply_op_to_not_none_tensors",
    "get_not_none_from_list",
]


class LocalGradientAggregationHelper:
    """Adds up gradients, and reduces and resets the sums in the last call of a step.

    It works eagerly, in functions, and in v1 graphs. There the sums are local variables: run
    tf.compat.v1.local_variables_initializer(), as a MonitoredSession does.

    Args:
      backward_passes_per_step: how many calls of compute_gradients make a step.
      allreduce_func: from lists of sums and their variables to the reduced sums.
      sparse_as_dense: convert IndexedSlices to tensors, because only tensors can be added up.
      average_aggregated_gradients: divide the reduced sums by backward_passes_per_step.
      rank, optimizer_type: not needed; Horovod has the arguments.
      process_set: its number of ranks divides the gradients of local variables.
      scale_local_gradients: whether to divide them.
      name: a part of the variables' names.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: Any,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        self.backward_passes_per_step = checked_passes(backward_passes_per_step)
        self.allreduce_grads = allreduce_func
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self._sums = GradientSums(self.backward_passes_per_step, sparse_as_dense, name)
        self._local: set[Any] = set()
        self._is_last: Any = None

    def register_local_var(self, var: Any) -> None:
        """Excludes the gradients of a variable from the reduction."""
        self._local.add(reference(var))

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Adds gradients to the sums, and returns the sums.

        In the last call of a step these are the reduced sums, in the others those of this rank;
        None for a variable without gradient. Raises ValueError for IndexedSlices unless
        sparse_as_dense is set.
        """
        present = [i for i, grad in enumerate(grads) if grad is not None]
        variables = [vars[i] for i in present]
        totals, self._is_last = self._sums.add([grads[i] for i in present], variables)
        results = list(grads)
        reduced = tf.cond(
            self._is_last,
            lambda: self._reduced(totals, variables),
            lambda: [tf.identity(total) for total in totals],
        )
        # tf.cond may return a list of one as its element.
        for i, gradient in zip(present, tf.nest.flatten(reduced), strict=True):
            results[i] = gradient
        return results

    def apply_gradients(
        self,
        apply_grads_closure: Callable[[], Any],
        optimizer: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Calls the function in the last call of a step.

        In the other calls it only increments the optimizer's iterations, and the variable
        `global_step` if there is one.

        Args:
          args, kwargs: the function's data; it runs after the tensors among them are computed.
        """
        counters = [getattr(optimizer, "_iterations", None), kwargs.get("global_step")]

        def applied() -> Any:
            return _as_flag(apply_grads_closure())

        def passed_over() -> Any:
            return _as_flag(*(each.assign_add(1) for each in counters if each is not None))

        tensors = tf.nest.flatten([args, kwargs])
        with tf.control_dependencies([each for each in tensors if isinstance(each, tf.Tensor)]):
            is_last = self._is_last
            if is_last is None:
                is_last = tf.constant(True)
            done = tf.cond(is_last, applied, passed_over)
        return done if tf.executing_eagerly() else done.op

    def _reduced(self, totals: list[Any], variables: list[Any]) -> list[Any]:
        refs = references(variables)
        ours = [i for i, ref in enumerate(refs) if ref not in self._local]
        results = list(totals)
        reduced = self.allreduce_grads([totals[i] for i in ours], [variables[i] for i in ours])
        for i, gradient in zip(ours, reduced, strict=True):
            results[i] = gradient
        if self.scale_local_gradients and self._local:
            number = size_op(set_id(self.process_set))
            for i in set(range(len(refs))).difference(ours):
                results[i] = results[i] / tf.cast(number, results[i].dtype)
        if self.average_aggregated_gradients:
            results = [each / self.backward_passes_per_step for each in results]
        with tf.control_dependencies(results):
            cleared = self._sums.clear(variables)
        with tf.control_dependencies([] if tf.executing_eagerly() else cleared):
            return [tf.identity(each) for each in results]


def apply_op_to_not_none_tensors(
    tensor_op: Callable[..., Any], tensors: Sequence[Any], *args: Any
) -> list[Any]:
    """Applies the function to each tensor; None stays None."""
    return [None if tensor is None else tensor_op(tensor, *args) for tensor in tensors]


def get_not_none_from_list(tensor_list: Sequence[Any]) -> list[Any]:
    return [tensor for tensor in tensor_list if tensor is not None]


def _as_flag(*done: Any) -> tf.Tensor:
    """Returns a value that both branches of a condition can return, after these operations."""
    dependencies = [] if tf.executing_eagerly() else [each for each in done if each is not None]
    with tf.control_dependencies(dependencies):
        return tf.constant(True)
