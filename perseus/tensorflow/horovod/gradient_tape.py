"""GradientTape whose gradients are those of all ranks."""

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
    """The tape, with a `gradient` that reduces over the ranks what it gives.

    The result is an instance of the tape's own class and shares what that has recorded; use it in
    the tape's place.

    Args:
      gradtape: a tf.GradientTape, before or after it has recorded.
      device_dense, device_sparse: the devices, as tf.device takes them, of the operations.
      compression: what a gradient is turned into before it is reduced.
      sparse_as_dense: reduces IndexedSlices as tensors, and does not gather them.
      op: Average, Sum, Min, Max, Product or Adasum.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / it after.
      num_groups: deprecated form of an int for `groups`.
      groups: gradients that are reduced together: the number of groups to split them into, or lists
        of variables; others stay single.
      process_set: the ranks that take part; on others gradients stay as they are.
      scale_local_gradients: divides the gradients of what register_local_source has been given by
        the number of ranks.

    Raises ValueError for arguments that contradict each other.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"gradtape is {type(gradtape).__name__}; it takes a tf.GradientTape")
    if isinstance(gradtape, _DistributedGradientTape):
        raise ValueError("the tape is a DistributedGradientTape already")
    cls = type(
        type(gradtape).__name__,
        (_DistributedGradientTape, type(gradtape)),
        {"__module__": __name__, "__doc__": type(gradtape).__doc__},
    )
    tape = cls.__new__(cls)
    tape.__dict__.update(vars(gradtape))
    # A recording that has begun is the other's to end: twice is once too often for TensorFlow.
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
    """DistributedGradientTape that leaves layers to their ranks.

    Args:
      local_layers: a layer of Keras or several, whose gradients are not reduced. The others are as
        those of DistributedGradientTape.
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
    """Comes before the tape's own class."""

    _reduction: GradientReduction
    _begun: Any

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of a variable to this rank."""
        self._reduction.register_local_var(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        *,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """tf.GradientTape.gradient, reduced over the ranks, in the structure of `sources`.

        Args:
          use_generic_names: names gradients by their places among the sources only, for ranks on
            which variables are called otherwise.
        """
        if self._begun._recording and not self._persistent:
            self._begun._pop_tape()
        gradients = super().gradient(
            target, sources, output_gradients, unconnected_gradients=unconnected_gradients
        )
        flat, variables = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        reduced = self._reduction(flat, variables, use_generic_names)
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[Any], list[Any]]:
        """gradient(), apart: those of local variables, and the reduced ones of the others."""
        variables = tf.nest.flatten(sources)
        gradients = self.gradient(target, variables, output_gradients, use_generic_names)
        local = [self._reduction.is_local(variable) for variable in variables]
        pairs = list(zip(gradients, local, strict=True))
        return [each for each, is_local in pairs if is_local], [
            each for each, is_local in pairs if not is_local
        ]
