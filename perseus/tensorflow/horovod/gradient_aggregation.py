"""Adds up the gradients of several backward passes on each rank before they are reduced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from perseus.common.gradient_arguments import checked_passes
from perseus.common.local_variables import LocalVariables
from perseus.common.process_sets import ProcessSet, global_process_set
from perseus.tensorflow.horovod.gradient_reduction import divided
from perseus.tensorflow.horovod.gradient_sums import GradientSums
from perseus.tensorflow.horovod.util import reference

__all__ = [
    "LocalGradientAggregationHelper",
    "OptimizersAggregation",
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
        self._name = name
        self._sums = GradientSums(self.backward_passes_per_step, sparse_as_dense, name)
        self.local_variables = LocalVariables(reference)
        self._is_last: Any = None

    @property
    def counter(self) -> Any:
        """How many calls of the present step there have been, as a variable."""
        return self._sums.counter

    def register_local_var(self, var: Any) -> None:
        """Excludes the gradients of a variable from the reduction."""
        self.local_variables.add(var)

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
            lambda: self._reduced(totals, present, vars),
            lambda: [tf.identity(total) for total in totals],
            # By default it is numbered among all conditions of the graph.
            name=f"{self._name}_last_pass".strip("_"),
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
        counters = [getattr(optimizer, "iterations", None), kwargs.get("global_step")]

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

    def _reduced(
        self, totals: list[Any], present: list[int], variables: Sequence[Any]
    ) -> list[Any]:
        """Returns the reduced sums of the variables at the places `present`, and clears them."""
        sums: list[Any] = [None] * len(variables)
        for i, total in zip(present, totals, strict=True):
            sums[i] = total
        reduced = self._reduce(sums, list(variables))
        results = [reduced[i] for i in present]
        if self.average_aggregated_gradients:
            results = [each / self.backward_passes_per_step for each in results]
        with tf.control_dependencies(results):
            cleared = self._sums.clear([variables[i] for i in present])
        with tf.control_dependencies([] if tf.executing_eagerly() else cleared):
            return [tf.identity(each) for each in results]

    def _reduce(self, sums: list[Any], variables: list[Any]) -> list[Any]:
        """Returns the reduced sums in their order; None for a variable that has had no gradient."""
        scale = functools.partial(divided, self.process_set) if self.scale_local_gradients else None
        return self.local_variables.reduce_others(sums, variables, self._allreduce, scale)

    def _allreduce(self, sums: list[Any], variables: list[Any]) -> Sequence[Any]:
        present = [i for i, total in enumerate(sums) if total is not None]
        results = list(sums)
        reduced = self.allreduce_grads([sums[i] for i in present], [variables[i] for i in present])
        for i, total in zip(present, reduced, strict=True):
            results[i] = total
        return results


class OptimizersAggregation(LocalGradientAggregationHelper):
    """Adds up the gradients of an optimizer, whose function takes None for a missing gradient.

    It matches gradients by their positions among all variables.
    """

    def _allreduce(self, sums: list[Any], variables: list[Any]) -> Sequence[Any]:
        return self.allreduce_grads(sums, variables)


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
