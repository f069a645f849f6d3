"""DistributedOptimizer for TensorFlow's own optimizers and Keras's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from perseus.common.gradient_arguments import checked_passes, given_groups
from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import Adasum, Average, checked_op
from perseus.tensorflow.horovod.compression import Compression, Compressor
from perseus.tensorflow.horovod.gradient_aggregation import OptimizersAggregation
from perseus.tensorflow.horovod.gradient_reduction import GradientReduction
from perseus.tensorflow.horovod.gradient_sums import local_variable
from perseus.tensorflow.horovod.mpi_ops import rank
from perseus.tensorflow.horovod.util import references
from perseus_core import WORLD

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Iterable[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns the optimizer with gradients that are reduced over the ranks before they are applied.

    Args:
      optimizer: a tf.compat.v1.train.Optimizer; or one of Keras, for which see
        perseus.tensorflow.horovod.keras.DistributedOptimizer.
      name: the name of a v1 optimizer; "Distributed" with its class by default.
      use_locking: as for v1 optimizers.
      device_dense, device_sparse: the devices of the operations, as for tf.device.
      compression: converts a gradient before it is reduced.
      sparse_as_dense: reduce IndexedSlices as tensors, in place of gathering them.
      backward_passes_per_step: how many calls add up their gradients before these are reduced.
      op: Average, Sum, Min, Max or Product of gradients; for v1 optimizers also Adasum. With Adasum
        each rank takes a step by itself, and the changes of the variables are combined.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / gradient_predivide_factor after.
      average_aggregated_gradients: divide the sums by backward_passes_per_step.
      num_groups: deprecated form of an int for `groups`.
      groups: gradients to reduce together: the number of groups to split them into, or lists of
        variables; others are reduced one by one.
      process_set: the ranks that take part; on others the optimizer is local.
      scale_local_gradients: divide the gradients of variables given to register_local_var by the
        number of ranks.

    Raises ValueError for arguments that contradict each other.
    """
    op = checked_op(op)
    passes = checked_passes(backward_passes_per_step)
    groups = given_groups(num_groups, groups)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if op == Adasum:
            raise ValueError("op == Adasum is not supported yet with Keras")
        # Keras is only imported if it is needed.
        from perseus.tensorflow.horovod import keras

        return keras.DistributedOptimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=passes,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    if isinstance(optimizer, _Wrapper):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    if tf.executing_eagerly() and passes > 1:
        raise ValueError(
            "backward_passes_per_step > 1 is not supported yet with tf.compat.v1.train optimizers "
            "in eager execution: use an optimizer of Keras, or a graph"
        )
    if op == Adasum:
        if set_id(process_set) != WORLD:
            raise NotImplementedError("Adasum takes the ranks of the world, and no process set")
        return _DistributedAdasumOptimizer(
            optimizer, name, use_locking, device_dense, device_sparse, compression, passes
        )
    return _DistributedOptimizer(
        optimizer,
        name,
        use_locking,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        passes,
        average_aggregated_gradients,
        groups,
        process_set,
        scale_local_gradients,
    )


class _Wrapper(tf.compat.v1.train.Optimizer):
    """Passes calls on to the optimizer within."""

    def __init__(self, optimizer: Any, name: str | None, use_locking: bool) -> None:
        super().__init__(
            name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking
        )
        self._optimizer = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.compute_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


class _DistributedOptimizer(_Wrapper):
    """Reduces gradients between computing and applying them."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: int | Sequence[Iterable[Any]] | None = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(optimizer, name, use_locking)
        self._reduction = GradientReduction(
            self.get_name(),
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            groups,
            process_set,
            scale_local_gradients,
        )
        self._agg_helper: OptimizersAggregation | None = None
        if backward_passes_per_step > 1:
            self._agg_helper = OptimizersAggregation(
                backward_passes_per_step,
                self._late_allreduce_grads,
                sparse_as_dense,
                average_aggregated_gradients,
                rank(),
                "optimizer_type",
                process_set,
                scale_local_gradients,
                self.get_name(),
            )

    def register_local_var(self, var: Any) -> None:
        """Excludes the gradient of a variable from the reduction."""
        (self._agg_helper or self._reduction).local_variables.add(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Returns pairs of gradients, reduced over the ranks, and variables."""
        gradients, variables = zip(*super().compute_gradients(*args, **kwargs), strict=True)
        if self._agg_helper is not None:
            reduced = self._agg_helper.compute_gradients(gradients, variables)
        else:
            reduced = self._reduction(gradients, variables, self._late_allreduce_grads)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        pairs = list(grads_and_vars)

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step, name)

        if self._agg_helper is None:
            return apply()
        return self._agg_helper.apply_gradients(
            apply, self._optimizer, pairs, global_step=global_step
        )

    def _allreduce_grads(
        self,
        grads: Sequence[Any],
        vars: Sequence[Any] | None = None,
        use_generic_names: bool = False,
    ) -> list[Any]:
        """Reduces gradients of variables that are not local. Programs for Horovod replace it."""
        return self._reduction.reduce(grads, vars, use_generic_names)

    def _late_allreduce_grads(self, grads: list[Any], vars: list[Any]) -> Sequence[Any]:
        """Calls what _allreduce_grads is when gradients are there."""
        return self._allreduce_grads(grads, vars)


class _DistributedAdasumOptimizer(_Wrapper):
    """Lets the optimizer take a step by itself, and combines the changes of the ranks.

    With several passes, the optimizer takes a step in each, and the changes of all of them are
    combined after the last.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        backward_passes_per_step: int = 1,
    ) -> None:
        super().__init__(optimizer, name, use_locking)
        self._passes = backward_passes_per_step
        self._reduction = GradientReduction(
            self.get_name(),
            device_dense,
            device_sparse,
            compression,
            False,
            Adasum,
            1.0,
            None,
            global_process_set,
        )
        # With several passes: how many there have been, and the variables before the first.
        self._counter: Any = None
        self._starts: dict[Any, Any] = {}

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for gradient, variable in pairs if gradient is not None]
        gradients = [gradient for gradient, _ in pairs if gradient is not None]
        with tf.control_dependencies(gradients):
            starts, is_last = self._begin(variables)
        with _after(starts):
            applied = self._optimizer.apply_gradients(pairs, global_step, name)
        with _after([applied]):
            values = [tf.raw_ops.DeepCopy(x=variable) for variable in variables]
            if self._passes == 1:
                combined = self._combine(starts, values, pairs)
            else:
                combined = tf.cond(
                    is_last,
                    lambda: self._combine(starts, values, pairs),
                    lambda: [tf.identity(value) for value in values],
                )
        assigned = [
            tf.compat.v1.assign(variable, value)
            for variable, value in zip(variables, tf.nest.flatten(combined), strict=True)
        ]
        return None if tf.executing_eagerly() else tf.group(*assigned, name=name)

    def _begin(self, variables: list[Any]) -> tuple[list[Any], Any]:
        """Returns the variables before the step's first pass, and whether this is its last."""
        if self._passes == 1:
            # A deep copy, because optimizers update in place.
            return [tf.raw_ops.DeepCopy(x=each) for each in variables], None
        self._make_variables(variables)
        count = tf.identity(self._counter.assign_add(1))
        starts = [self._starts[ref] for ref in references(variables)]
        is_first = tf.equal((count - 1) % self._passes, 0)
        kept = [
            start.assign(tf.where(is_first, variable, start))
            for start, variable in zip(starts, variables, strict=True)
        ]
        with _after(kept):
            return [tf.identity(start) for start in starts], tf.equal(count % self._passes, 0)

    def _make_variables(self, variables: list[Any]) -> None:
        # Outside the control dependencies of the present graph.
        with tf.init_scope():
            if self._counter is None:
                self._counter = local_variable(tf.zeros([], tf.int64), f"{self.get_name()}_counter")
            for variable, ref in zip(variables, references(variables), strict=True):
                if ref not in self._starts:
                    zeros = tf.zeros(variable.shape, variable.dtype.base_dtype)
                    self._starts[ref] = local_variable(zeros, f"{self.get_name()}_start")

    def _combine(
        self, starts: list[Any], values: list[Any], pairs: list[tuple[Any, Any]]
    ) -> list[Any]:
        """Returns new values of the variables that have gradients among `pairs`."""
        made = iter([value - start for value, start in zip(values, starts, strict=True)])
        deltas = [None if gradient is None else next(made) for gradient, _ in pairs]
        reduced = self._reduction(deltas, [variable for _, variable in pairs])
        moved = [delta for delta in reduced if delta is not None]
        return [start + delta for start, delta in zip(starts, moved, strict=True)]


def _after(operations: list[Any]) -> Any:
    """In a graph, makes later operations wait for these; eager ones are in order anyway."""
    return tf.control_dependencies([] if tf.executing_eagerly() else operations)
