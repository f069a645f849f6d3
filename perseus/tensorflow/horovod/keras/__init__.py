"""Horovod's interface for tf.keras, `import perseus.tensorflow.keras as hvd`.

    hvd.init()
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1 * hvd.size())), "mse")
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

tf.keras is Keras 3 with current releases of TensorFlow, Keras 2 with those before 2.16.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from perseus._keras import loading
from perseus._keras.binding import Functions
from perseus._keras.optimizer import distributed_optimizer
from perseus.common.compression import Compressor
from perseus.common.gradient_arguments import given_groups
from perseus.common.process import *
from perseus.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from perseus.common.reduce_ops import Average, Sum, resolve_op
from perseus.tensorflow import keras_backend as _backend
from perseus.tensorflow.horovod.compression import Compression
from perseus.tensorflow.horovod.keras import callbacks, elastic

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
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
    "remove_process_set",
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
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Iterable[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns the optimizer with gradients that are reduced over the ranks before they are applied.

    The result is an instance of a subclass of the optimizer's class, with its name, and shares its
    state; use it in place of the optimizer. A saved model is the same with it as without, so that
    loading does not need Perseus. register_local_var(variable) excludes a variable's gradients from
    the reduction. If the loss is scaled, either all ranks take a step or none does.

    Args:
      optimizer: one of tf.keras.optimizers, which may scale the loss.
      name: a prefix of the operations' names; "Distributed" with the optimizer's class by default.
      device_dense, device_sparse: the devices of the operations, as for tf.device.
      compression: converts a gradient before it is reduced.
      sparse_as_dense: reduce IndexedSlices as tensors, in place of gathering them.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / gradient_predivide_factor after.
      op: Average or Sum.
      backward_passes_per_step: how many calls add up their gradients before these are reduced and
        applied; all calls count as iterations.
      average_aggregated_gradients: divide the sums by backward_passes_per_step.
      num_groups: deprecated form of an int for `groups`.
      groups: gradients to reduce together: the number of groups to split them into, or lists of
        variables; others are reduced one by one.
      process_set: the ranks that take part; on others the optimizer is local.
      scale_local_gradients: divide the gradients of variables given to register_local_var by the
        number of ranks.

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
        backward_passes_per_step,
        average_aggregated_gradients,
        given_groups(num_groups, groups),
        process_set,
        scale_local_gradients,
    )


_functions = Functions(_backend)
allgather = _functions.allgather
broadcast = _functions.broadcast
broadcast_global_variables = _functions.broadcast_global_variables
reducescatter = _functions.reducescatter


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Reduces the ranks' values, of one shape and type, element by element; returns a tensor.

    Args:
      value: a number, an array, or a tensor.
      name: what ranks match the operation by.
      average: Horovod's older form of `op`.
      op: Average (the default), Sum, Min, Max or Product.
      prescale_factor, postscale_factor: inputs are multiplied by the former first, results by the
        latter last.
      compression: converts tensors before they are reduced.
    """
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
      filepath: as for tf.keras.models.load_model.
      custom_optimizers: classes of optimizers other than Keras's own.
      custom_objects: other objects whose names are in the file.
      compression: that of the optimizer.
      legacy_opts: not needed, because the file says so; Horovod has the argument.
    """

    distribute = functools.partial(DistributedOptimizer, compression=compression)
    return loading.load_model(tf.keras, distribute, filepath, custom_optimizers, custom_objects)
