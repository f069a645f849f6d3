"""DistributedOptimizer, which is any optimizer of Keras with gradients reduced over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from perseus._keras import keras3_optimizer
from perseus._keras.backend import Backend, Options
from perseus._keras.distributed import Distributed
from perseus.common.compression import Compressor
from perseus.common.gradient_arguments import checked_passes, checked_predivide
from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.reduce_ops import Average, Sum

__all__ = ["distributed_optimizer", "local_variables"]


def distributed_optimizer(
    backend: Backend,
    optimizer: Any,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: type[Compressor],
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
    groups: int | Sequence[Iterable[Any]] | None,
    process_set: ProcessSet,
    scale_local_gradients: bool,
) -> Any:
    """Returns the optimizer as an instance of a subclass of its class, with the class's name.

    It shares the optimizer's state, and is saved like the optimizer.
    """
    ours = _kind_of(optimizer, backend)
    if isinstance(optimizer, Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    factor = checked_predivide(gradient_predivide_factor, op)
    passes = checked_passes(backward_passes_per_step)
    set_id(process_set)
    options = Options(
        name or f"Distributed{type(optimizer).__name__}",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        factor,
        op,
        passes,
        average_aggregated_gradients,
        groups,
        process_set,
        scale_local_gradients,
    )
    return ours.of(optimizer, backend, options)


def local_variables(
    layer_class: type | tuple[type, ...], name: str, local_layers: Any
) -> list[Any]:
    """Returns the trainable weights of layers; raises ValueError if one is not a layer.

    Args:
      name: the name of the first layer_class in the message.
      local_layers: one layer, several, or None.
    """
    if local_layers is None:
        return []
    layers = local_layers if isinstance(local_layers, (list, tuple, set)) else [local_layers]
    if not all(isinstance(layer, layer_class) for layer in layers):
        raise ValueError(f"All local layers must be of {name} type.")
    return [weight for layer in layers for weight in layer.trainable_weights]


def _kind_of(optimizer: Any, backend: Backend) -> type[Distributed]:
    """Returns the class to put before the optimizer's own, by the methods that it has."""
    kind = None
    if not isinstance(optimizer, type):
        if hasattr(optimizer, "stateless_apply"):
            return keras3_optimizer.Keras3Distributed
        kind = backend.keras2_class(optimizer)
    if kind is None:
        raise TypeError(f"optimizer is {optimizer!r}; it takes an optimizer of Keras")
    return kind
