"""Reductions of tensors and of IndexedSlices, with compression.

Arguments besides those of perseus.tensorflow.horovod.mpi_ops:
  op: Average (the default), Sum, Min, Max, Product or Adasum. `average` is its deprecated form.
  compression: converts tensors before they are reduced.
  prescale_factor, postscale_factor: inputs are multiplied by the former first, results by the
    latter last.
  device_dense, device_sparse: the device of the ops, as for tf.device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import Adasum, Average, Sum, resolve_op
from perseus.tensorflow.horovod.compression import Compression, Compressor
from perseus.tensorflow.horovod.mpi_ops import (
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    allgather,
    size_op,
)
from perseus.tensorflow.horovod.op_arguments import refusing
from perseus_core import OperationKind

__all__ = ["allreduce", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces the ranks' tensors element by element. Differentiable.

    IndexedSlices are summed or averaged by gathering their values and indices; the result is
    IndexedSlices with the rows of all ranks. Other reductions of them raise NotImplementedError.
    """
    with refusing(OperationKind.ALLREDUCE, "HorovodAllreduce", name, process_set):
        op = resolve_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        with tf.device(device_sparse):
            return gathered_slices(tensor, op, prescale_factor, postscale_factor, name, process_set)
    with tf.device(device_dense):
        with refusing(OperationKind.ALLREDUCE, "HorovodAllreduce", name, process_set):
            compressed, context = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _allreduce(
            compressed,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Sequence[Any]:
    """Does an allreduce of several tensors of one dtype as one operation.

    IndexedSlices among them are reduced separately.
    """
    if not tensors:
        return tensors
    with refusing(OperationKind.ALLREDUCE, "HorovodGroupedAllreduce", name, process_set):
        op = resolve_op(op, average)
    results: list[Any] = list(tensors)
    dense = [i for i, each in enumerate(tensors) if not isinstance(each, tf.IndexedSlices)]
    for i, each in enumerate(tensors):
        if isinstance(each, tf.IndexedSlices):
            results[i] = allreduce(
                each,
                device_sparse=device_sparse,
                op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                process_set=process_set,
                name=f"{name}_{i}" if name else None,
            )
    if not dense:
        return results
    with tf.device(device_dense):
        with refusing(OperationKind.ALLREDUCE, "HorovodGroupedAllreduce", name, process_set):
            compressed = [compression.compress(tf.convert_to_tensor(tensors[i])) for i in dense]
        reduced = _grouped_allreduce(
            [tensor for tensor, _ in compressed],
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        for i, tensor, (_, context) in zip(dense, reduced, compressed, strict=True):
            results[i] = compression.decompress(tensor, context)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Sums or averages the ranks' tensors; each rank gets its share of the rows. Differentiable."""
    with tf.device(device_dense):
        with refusing(OperationKind.REDUCESCATTER, "HorovodReducescatter", name, process_set):
            compressed, context = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _reducescatter(
            compressed,
            name=name,
            op=op,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Sequence[tf.Tensor]:
    """Does a reducescatter of several tensors of one dtype as one operation."""
    if not tensors:
        return tensors
    with tf.device(device_dense):
        with refusing(
            OperationKind.REDUCESCATTER, "HorovodGroupedReducescatter", None, process_set
        ):
            compressed = [compression.compress(tf.convert_to_tensor(each)) for each in tensors]
        reduced = _grouped_reducescatter(
            [tensor for tensor, _ in compressed],
            op=op,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        return [
            compression.decompress(tensor, context)
            for tensor, (_, context) in zip(reduced, compressed, strict=True)
        ]


def gathered_slices(
    slices: tf.IndexedSlices,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    name: str | None,
    process_set: ProcessSet,
) -> tf.IndexedSlices:
    """Gathers the rows of all ranks' slices, whose duplicates add up.

    Raises NotImplementedError for reductions other than Average and Sum.
    """
    if op == Adasum:
        raise NotImplementedError(
            "Adasum does not reduce IndexedSlices: set sparse_as_dense=True, or pass a dense tensor"
        )
    if op not in (Average, Sum):
        raise NotImplementedError("IndexedSlices can be averaged and summed only")
    values = allgather(
        slices.values, name=f"{name}_values" if name else None, process_set=process_set
    )
    indices = allgather(
        slices.indices, name=f"{name}_indices" if name else None, process_set=process_set
    )
    if op == Average:
        values /= tf.cast(size_op(set_id(process_set)), values.dtype)
    # Scaling before the sum and after it gives the same result.
    factor = prescale_factor * postscale_factor
    if factor != 1.0:
        values = tf.cast(tf.cast(values, tf.float64) * factor, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)
