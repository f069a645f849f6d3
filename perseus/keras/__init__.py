"""Horovod's interface for Keras, `import perseus.keras as hvd`.

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), "mse")
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Keras 3 runs on TensorFlow or PyTorch, as KERAS_BACKEND says, and tensors are those of its backend.
Importing this raises NotImplementedError if it runs on another. Keras 2 runs on TensorFlow.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from perseus._keras import loading
from perseus._keras.binding import Functions
from perseus._keras.optimizer import distributed_optimizer, local_variables
from perseus.common.compression import Compressor
from perseus.common.gradient_arguments import given_groups
from perseus.common.process import *
from perseus.common.process_sets import ProcessSet, global_process_set
from perseus.common.reduce_ops import Adasum, Average, Sum, resolve_op
from perseus.keras import callbacks, elastic
from perseus.keras.backend import backend as _backend

Compression = _backend.horovod.Compression

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "sycl_built",
]


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | Sequence[Iterable[Any]] | None = None,
) -> Any:
    """Returns the optimizer with gradients that are reduced over the ranks before they are applied.

    The result is an instance of a subclass of the optimizer's class, with its name, and shares its
    state; use it in place of the optimizer. A saved model is the same with it as without, so that
    loading does not need Perseus. register_local_var(variable) excludes a variable's gradients from
    the reduction. If the loss is scaled, either all ranks take a step or none does.

    Args:
      optimizer: one of keras.optimizers, which may scale the loss.
      name: a prefix of the operations' names; "Distributed" with the optimizer's class by default.
      device_dense, device_sparse: the devices of the operations, as for tf.device.
      compression: converts a gradient before it is reduced.
      sparse_as_dense: reduce IndexedSlices as tensors, in place of gathering them.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / gradient_predivide_factor after.
      op: Average or Sum.
      num_groups: deprecated form of an int for `groups`.
      groups: gradients to reduce together: the number of groups to split them into, or lists of
        variables; others are reduced one by one.

    Raises ValueError for arguments that contradict each other.
    """
    return distributed_optimizer(
        _backend,
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        1,
        False,
        given_groups(num_groups, groups),
        global_process_set,
        True,
    )


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Iterable[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a DistributedOptimizer that does not reduce the gradients of some layers.

    Args:
      backward_passes_per_step: how many calls add up their gradients before these are reduced and
        applied; all calls count as iterations.
      average_aggregated_gradients: divide the sums by backward_passes_per_step.
      process_set: the ranks that take part; on others the optimizer is local.
      local_layers: one or several layers whose gradients are not reduced.
      scale_local_gradients: divide the gradients of these layers by the number of ranks.

    The other arguments are those of DistributedOptimizer.

    Raises ValueError for arguments that contradict each other.
    """
    local = local_variables(_layer_classes(), "keras.layers.Layer", local_layers)
    distributed = distributed_optimizer(
        _backend,
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in local:
        distributed.register_local_var(variable)
    return distributed


def _layer_classes() -> tuple[type, ...]:
    """Returns the class of layers, also of tf_keras, which is Keras 2 beside Keras 3, if in use."""
    packages = [keras, sys.modules.get("tf_keras")]
    return tuple(package.layers.Layer for package in packages if package is not None)


_functions = Functions(_backend)
allgather = _functions.allgather
broadcast = _functions.broadcast
broadcast_global_variables = _functions.broadcast_global_variables
reducescatter = _functions.reducescatter


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Reduces the ranks' values, of one shape and type, element by element; returns a tensor.

    Args:
      value: a number, an array, or a tensor.
      name: what ranks match the operation by.
      average: Horovod's older form of `op`. ValueError if both are given, so pass None with `op`.
      op: Average (the default), Sum, Min, Max or Product.
      prescale_factor, postscale_factor: inputs are multiplied by the former first, results by the
        latter last.
      compression: converts tensors before they are reduced.
    """
    if average and op is None:
        op, average = Average, None
    return _backend.allreduce(
        value, name, resolve_op(op, average), prescale_factor, postscale_factor, compression
    )


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Returns a model from a file, with a DistributedOptimizer in the state that was saved.

    Args:
      filepath: as for keras.models.load_model.
      custom_optimizers: classes of optimizers other than Keras's own.
      custom_objects: other objects whose names are in the file.
      compression: that of the optimizer.
      legacy_opts: not needed, because the file says so; Horovod has the argument.
    """

    distribute = functools.partial(DistributedOptimizer, compression=compression)
    return loading.load_model(keras, distribute, filepath, custom_optimizers, custom_objects)
