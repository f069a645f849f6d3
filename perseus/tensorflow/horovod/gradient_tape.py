"""A GradientTape whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from perseus._keras.optimizer import local_variables
from perseus.common.gradient_arguments import given_groups
from perseus.common.process_sets import ProcessSet, global_process_set
from perseus.common.reduce_ops import Average
from perseus.tensorflow.horovod.compression import Compression, Compressor
from perseus.tensorflow.horovod.gradient_reduction import GradientReduction

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Iterable[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns the tape, with a `gradient` that reduces its result over the ranks.

    The result is an instance of the tape's own class and shares its recording; use it in place of
    the tape.

    Args:
      gradtape: a tf.GradientTape, before or after recording.
      device_dense, device_sparse: the devices of the operations, as for tf.device.
      compression: converts a gradient before it is reduced.
      sparse_as_dense: reduce IndexedSlices as tensors, in place of gathering them.
      op: Average, Sum, Min, Max, Product or Adasum.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / gradient_predivide_factor after.
      num_groups: deprecated form of an int for `groups`.
      groups: gradients to reduce together: the number of groups to split them into, or lists of
        variables; others are reduced one by one.
      process_set: the ranks that take part; on others gradients are not changed.
      scale_local_gradients: divide the gradients of variables given to register_local_source by the
        number of ranks.

    Raises ValueError for arguments that contradict each other.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"gradtape is {type(gradtape).__name__}; it takes a tf.GradientTape")
    if isinstance(gradtape, _DistributedGradientTape):
        raise ValueError("the tape is a DistributedGradientTape already")
    cls: Any = type(
        type(gradtape).__name__,
        (_DistributedGradientTape, type(gradtape)),
        {"__module__": __name__, "__doc__": type(gradtape).__doc__},
    )
    tape = cls.__new__(cls)
    tape.__dict__.update(vars(gradtape))
    # If recording has begun, only the original tape may end it: TensorFlow fails if it ends twice.
    tape._recording = False
    tape._begun = gradtape
    tape._reduction = GradientReduction(
        "DistributedGradientTape",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        given_groups(num_groups, groups),
        process_set,
        scale_local_gradients,
    )
    return tape


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Iterable[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a DistributedGradientTape that does not reduce the gradients of some layers.

    Args:
      local_layers: one or several layers of Keras whose gradients are not reduced.

    The other arguments are those of DistributedGradientTape.
    """
    weights = local_variables(tf.keras.layers.Layer, "tf.keras.layers.Layer", local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in weights:
        tape.register_local_source(variable)
    return tape


class _DistributedGradientTape(tf.GradientTape):
    """The class that comes before the tape's own."""

    _reduction: GradientReduction
    _begun: Any

    def register_local_source(self, source: Any) -> None:
        """Excludes the gradient of a variable from the reduction."""
        self._reduction.local_variables.add(source)

    def _allreduce_grads(
        self,
        grads: Sequence[Any],
        vars: Sequence[Any] | None = None,
        use_generic_names: bool = False,
    ) -> list[Any]:
        """Reduces the gradients of sources that are not local. Programs for Horovod replace it."""
        return self._reduction.reduce(grads, vars, use_generic_names)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        *,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Returns tf.GradientTape.gradient, reduced over the ranks, in the structure of `sources`.

        Ranks match the gradients of sources that are not local by their positions among these and
        by the names of variables.

        Args:
          use_generic_names: match them by position only, in case the names of variables or the
            scopes in which this is called differ between ranks.
        """
        if self._begun._recording and not self._persistent:
            self._begun._pop_tape()
        gradients = super().gradient(
            target, sources, output_gradients, unconnected_gradients=unconnected_gradients
        )
        flat, variables = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        reduced = self._reduction(
            flat,
            variables,
            lambda grads, vars: self._allreduce_grads(grads, vars, use_generic_names),
        )
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Returns local sources with their gradients, and other sources with the reduced ones.

        Both are lists of pairs (source, gradient), in the order of the sources.
        """
        variables = tf.nest.flatten(sources)
        gradients = self.gradient(target, variables, output_gradients, use_generic_names)
        local: list[tuple[Any, Any]] = []
        reduced: list[tuple[Any, Any]] = []
        for source, gradient in zip(variables, gradients, strict=True):
            is_local = source in self._reduction.local_variables
            (local if is_local else reduced).append((source, gradient))
        return local, reduced
