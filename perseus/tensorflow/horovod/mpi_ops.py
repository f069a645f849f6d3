"""The operations as differentiable ops of TensorFlow, in eager mode, functions and graphs.

Common arguments:
  name: what ranks match the operation by. In a graph it is the name of the node, by default made
    from the tensor's name. In eager mode all unnamed operations of a kind have one name, and run
    one after the other.
  ignore_name_scope: match by the name without the scopes of the node.
  process_set: the ranks that take part.

Errors are TensorFlow's: InvalidArgumentError for a mistake on this rank; FailedPreconditionError
before init, and on every rank if the ranks' operations do not fit together; UnknownError if the job
cannot go on, for instance because a rank has died. TypeError for types that cannot be sent.

Tensors on a GPU are sent by way of the host, because TensorFlow's C API does not show the streams
of its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from perseus.common.process import *
from perseus.common.process import basics as _basics  # noqa: F401 (programs take it from here)
from perseus.common.process import is_homogeneous
from perseus.common.process_sets import ProcessSet, global_process_set
from perseus.common.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from perseus.tensorflow.horovod.op_arguments import (
    in_graph,
    matched,
    reducing,
    refusing,
    sendable,
    short_name,
)
from perseus.tensorflow.horovod.util import tensorflow_variable
from perseus.tensorflow.plugin import ops
from perseus_core import OperationKind
from perseus_core.arguments import whole_number

# From types that ranks cannot send to types of the same size that they can.
_SENT_AS = {
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.int64,
    tf.complex128: tf.float64,  # two of them
}


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Reduces the ranks' tensors, which have one shape and dtype, element by element."""
    with refusing(OperationKind.ALLREDUCE, "HorovodAllreduce", name, process_set):
        tensor = sendable(tensor)
        how = reducing(op, prescale_factor, postscale_factor)
    return ops.horovod_allreduce(
        tensor,
        **how,
        **matched("HorovodAllreduce", tensor, name, ignore_name_scope, process_set),
    )


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Reduces several tensors of one dtype as one operation."""
    with refusing(OperationKind.ALLREDUCE, "HorovodGroupedAllreduce", name, process_set):
        tensors = [sendable(tensor) for tensor in tensors]
        how = reducing(op, prescale_factor, postscale_factor)
    reduced: list[tf.Tensor] = ops.horovod_grouped_allreduce(
        tensors,
        **how,
        **matched("HorovodGroupedAllreduce", tensors[0], name, ignore_name_scope, process_set),
    )
    return reduced


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces as _allreduce does; each rank gets its share of the rows.

    If the rows cannot be divided evenly, the first ranks get one more each.
    """
    with refusing(OperationKind.REDUCESCATTER, "HorovodReducescatter", name, process_set):
        tensor = sendable(tensor)
        how = reducing(op, prescale_factor, postscale_factor)
    return ops.horovod_reducescatter(
        tensor,
        **how,
        **matched("HorovodReducescatter", tensor, name, ignore_name_scope, process_set),
    )


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Does a _reducescatter of several tensors of one dtype as one operation."""
    with refusing(OperationKind.REDUCESCATTER, "HorovodGroupedReducescatter", name, process_set):
        tensors = [sendable(tensor) for tensor in tensors]
        how = reducing(op, prescale_factor, postscale_factor)
    own_rows: list[tf.Tensor] = ops.horovod_grouped_reducescatter(
        tensors,
        **how,
        **matched("HorovodGroupedReducescatter", tensors[0], name, ignore_name_scope, process_set),
    )
    return own_rows


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order.

    The first dimension may differ between the ranks.
    """
    with refusing(OperationKind.ALLGATHER, "HorovodAllgather", name, process_set):
        tensor = sendable(tensor)
    return ops.horovod_allgather(
        tensor,
        **matched("HorovodAllgather", tensor, name, ignore_name_scope, process_set),
    )


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Does an allgather of several tensors of one dtype as one operation."""
    with refusing(OperationKind.ALLGATHER, "HorovodGroupedAllgather", name, process_set):
        tensors = [sendable(tensor) for tensor in tensors]
    if not tensors:
        return []
    gathered: list[tf.Tensor] = ops.horovod_grouped_allgather(
        tensors,
        **matched("HorovodGroupedAllgather", tensors[0], name, ignore_name_scope, process_set),
    )
    return gathered


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Returns the tensor of a rank of the world; all must have its shape and dtype."""
    with refusing(OperationKind.BROADCAST, "HorovodBroadcast", name, process_set):
        tensor = sendable(tensor)
        root_rank = whole_number("root_rank", root_rank)
    return ops.horovod_broadcast(
        tensor,
        root_rank=root_rank,
        **matched("HorovodBroadcast", tensor, name, ignore_name_scope, process_set),
    )


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assigns the root's values to variables, and returns the values.

    Args:
      name: what ranks match the operation by, in place of the variables' names.

    Raises ValueError if one is not a variable.
    """
    variables = checked_variables("broadcast_", variables)
    if not variables:
        return []
    names = tuple(
        f"{name or short_name(each)}_{i}of{len(variables)}" for i, each in enumerate(variables, 1)
    )
    values, assigned = assign_values_of_root(variables, names, root_rank, process_set)
    with tf.control_dependencies([] if tf.executing_eagerly() else assigned):
        return [tf.identity(value) for value in values]


def checked_variables(function: str, variables: Iterable[Any]) -> list[Any]:
    """Returns the variables of TensorFlow, also for those of Keras; ValueError for others."""
    found = [tensorflow_variable(each) for each in variables]
    for each in found:
        if not isinstance(each, tf.Variable):
            raise ValueError(
                f"{function} takes variables, not {type(each).__name__}; broadcast takes tensors"
            )
    return found


def assign_values_of_root(
    variables: Sequence[Any], names: Sequence[str], root_rank: int, process_set: ProcessSet
) -> tuple[list[tf.Tensor], list[Any]]:
    """Assigns the values on a rank of the world to variables; ranks match them by `names`.

    Returns the values, and in a graph the operations that assign them.
    """
    present = [tf.convert_to_tensor(each) for each in variables]
    values = in_graph(_values_of_root, process_set, tuple(names), root_rank)(present)
    # This also works for the old kind of variable that v1 graphs may have.
    assigned = [
        tf.compat.v1.assign(each, value) for each, value in zip(variables, values, strict=True)
    ]
    return values, assigned


def _values_of_root(
    names: tuple[str, ...], root_rank: int, process_set: ProcessSet, values: list[tf.Tensor]
) -> list[tf.Tensor]:
    return [
        _value_of_root(value, root_rank, f"HorovodBroadcast_{name}", process_set)
        for name, value in zip(names, values, strict=True)
    ]


def _value_of_root(
    value: tf.Tensor, root_rank: int, name: str, process_set: ProcessSet
) -> tf.Tensor:
    sent_as = _SENT_AS.get(value.dtype)
    if sent_as is None:
        return broadcast(value, root_rank, name=name, process_set=process_set)
    bits = tf.bitcast(value, sent_as)
    return tf.bitcast(broadcast(bits, root_rank, name=name, process_set=process_set), value.dtype)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows to each rank, and returns the rows received, in rank order.

    Args:
      splits: how many rows each rank of the set gets; None for equal parts.

    Returns the rows; with `splits`, also how many came from each rank (int32).
    """
    with refusing(OperationKind.ALLTOALL, "HorovodAlltoall", name, process_set):
        tensor = sendable(tensor)
        rows_of = tf.constant([], tf.int32) if splits is None else _whole_numbers(splits)
    output, received = ops.horovod_alltoall(
        tensor,
        rows_of,
        **matched("HorovodAlltoall", tensor, name, ignore_name_scope, process_set),
    )
    return output if splits is None else (output, received)


def _whole_numbers(splits: Any) -> tf.Tensor:
    splits = tf.convert_to_tensor(splits)
    # An empty list becomes a tensor of floats.
    if not splits.dtype.is_integer and splits.shape != [0]:
        raise TypeError(f"splits must be whole numbers, not {splits.dtype.name}")
    return tf.cast(splits, tf.int32)


def join() -> tf.Tensor:
    """Declares that this rank has no more data, and waits until all ranks have done so.

    Meanwhile this rank takes part in operations with neutral data. Returns the rank that joined
    last, as an int32 scalar.
    """
    return ops.horovod_join()


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns the number of ranks when the op runs, as an int32 scalar; -2 for an unknown set."""
    return ops.horovod_size(process_set_id=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns 1 if this rank is in the set when the op runs, 0 if not, -2 for an unknown set."""
    return ops.horovod_process_set_included(process_set_id=process_set_id, name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Returns local_size() when the op runs, as an int32 scalar."""
    return ops.horovod_local_size(name=name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns rank() when the op runs, as an int32 scalar."""
    return ops.horovod_rank(name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns local_rank() when the op runs, as an int32 scalar."""
    return ops.horovod_local_rank(name=name)


__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "sycl_built",
]
