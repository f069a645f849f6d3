"""The operations on arrays of MXNet.

MXNet's engine runs them when their arrays are ready, and only code that uses a result waits for it.
allgather and alltoall wait themselves, because the size of their results is not known in advance.

Common arguments:
  tensor: a dense array of mx.nd or mx.np; the result is an array of the same kind.
  name: what ranks match the call by; None for the order of the unnamed calls.
  priority: higher goes first, in MXNet's engine and in Perseus's.
  process_set: the ranks that take part.

A mistake that is found on this rank raises ValueError or TypeError, and the other ranks' calls
fail. If the ranks' calls do not fit together, for instance because shapes differ, all ranks get an
MXNetError, which is also a HorovodInternalError. It is raised where the program waits for the
result (asnumpy, wait_to_read).
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx

import perseus_core
from perseus.common.process import *
from perseus.common.process import basics as _basics
from perseus.common.process import is_homogeneous, is_initialized, size
from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    checked_op,
    resolve_op,
)
from perseus.mxnet import engine, errors
from perseus.mxnet.engine import NDArray, checked, checked_list, empty_like
from perseus_core import OperationKind
from perseus_core.arguments import real_number, row_counts, whole_number


# They replace the functions of the same names in common.process.
def init(  # type: ignore[no-redef]
    comm: Any = None, process_sets: str | Sequence[ProcessSet] | None = None
) -> None:
    """Joins the other processes of the job; see perseus.common.basics.Basics.init."""
    is_first = not is_initialized()
    try:
        _basics.init(comm, process_sets)
    finally:
        if is_first:
            # Functions run in reverse order, so this one runs before those that init has
            # registered. If a process set is a duplicate, init fails, but the process is in the
            # job.
            atexit.unregister(_drain_at_exit)
            atexit.register(_drain_at_exit)


def shutdown() -> None:  # type: ignore[no-redef]
    """Leaves the job when the operations that MXNet's engine has been given are complete.

    Waits for at most PERSEUS_STALL_CHECK_TIME_SECONDS for the next one; operations that other ranks
    have not submitted by then fail. init may be called again.
    """
    if is_initialized():
        engine.drain()
    _basics.shutdown()


def _drain_at_exit() -> None:
    # A script that has failed leaves without waiting.
    if getattr(sys, "last_value", None) is None and is_initialized():
        engine.drain()


def allreduce(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """Reduces the ranks' arrays element by element into a new one; all ranks get the result.

    Args:
      average: the deprecated form of op=Average or op=Sum.
      prescale_factor, postscale_factor: inputs are multiplied by the former first, results by the
        latter last.
      op: Average (the default), Sum, Min, Max, Product or Adasum.
    """
    (output,), _ = _submit(
        OperationKind.ALLREDUCE,
        tensor,
        empty_like,
        name,
        process_set,
        lambda: _reducing(resolve_op(op, average), prescale_factor, postscale_factor, priority),
    )
    return output


def allreduce_(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """Does an allreduce in place; returns the array."""
    _submit(
        OperationKind.ALLREDUCE,
        tensor,
        _itself,
        name,
        process_set,
        lambda: _reducing(resolve_op(op, average), prescale_factor, postscale_factor, priority),
    )
    return tensor


def allreduce_to(
    output: NDArray, tensor: NDArray, name: str, priority: int = 0, op: int = Average
) -> NDArray:
    """Does an allreduce into an existing array, and returns that. Horovod does not have it."""
    _submit(
        OperationKind.ALLREDUCE,
        tensor,
        lambda _: output,
        name,
        global_process_set,
        lambda: _reducing(resolve_op(op, None), 1.0, 1.0, priority),
    )
    return output


def grouped_allreduce(
    tensors: Sequence[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[NDArray]:
    """Does an allreduce of several arrays as one operation."""
    outputs, _ = _submit(
        OperationKind.ALLREDUCE,
        tensors,
        empty_like,
        name,
        process_set,
        lambda: _reducing(resolve_op(op, average), prescale_factor, postscale_factor, priority),
        grouped=True,
    )
    return outputs or tensors


def grouped_allreduce_(
    tensors: Sequence[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[NDArray]:
    """Does a grouped_allreduce in place; returns the arrays, which must not share memory."""
    outputs, _ = _submit(
        OperationKind.ALLREDUCE,
        tensors,
        _itself,
        name,
        process_set,
        lambda: _reducing(resolve_op(op, average), prescale_factor, postscale_factor, priority),
        grouped=True,
    )
    return tensors if isinstance(tensors, Sequence) else outputs


def allgather(
    tensor: NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Concatenates the ranks' arrays along the first dimension, in rank order.

    The first dimension may differ between the ranks. Waits for the result.
    """
    _, pending = _submit(
        OperationKind.ALLGATHER,
        tensor,
        None,
        name,
        process_set,
        lambda: {"priority": whole_number("priority", priority)},
    )
    return pending.wait()[0]


def grouped_allgather(
    tensors: Sequence[NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Sequence[NDArray]:
    """Does an allgather of several arrays as one operation."""
    _, pending = _submit(
        OperationKind.ALLGATHER,
        tensors,
        None,
        name,
        process_set,
        lambda: {"priority": whole_number("priority", priority)},
        grouped=True,
    )
    return pending.wait() if pending else tensors


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Returns the array of a rank of the world as a new one; all must have its shape and dtype."""
    (output,), _ = _submit(
        OperationKind.BROADCAST,
        tensor,
        empty_like,
        name,
        process_set,
        lambda: _from_root(root_rank, priority),
    )
    return output


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Does a broadcast in place; returns the array."""
    _submit(
        OperationKind.BROADCAST,
        tensor,
        _itself,
        name,
        process_set,
        lambda: _from_root(root_rank, priority),
    )
    return tensor


def alltoall(
    tensor: NDArray,
    splits: NDArray | Sequence[int] | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray | tuple[NDArray, NDArray]:
    """Sends rows to each rank, waits, and returns the rows received, in rank order.

    Args:
      splits: how many rows each rank of the set gets; None for equal parts.

    Returns the rows; with `splits`, also how many came from each rank (int32).
    """
    _, pending = _submit(
        OperationKind.ALLTOALL,
        tensor,
        None,
        name,
        process_set,
        lambda: {"priority": whole_number("priority", priority), "splits": _rows(splits)},
    )
    (rows,) = pending.wait()
    if splits is None:
        return rows
    array = mx.np.array if isinstance(tensor, mx.np.ndarray) else mx.nd.array
    return rows, array(pending.received_splits(), dtype="int32", ctx=tensor.context)


def reducescatter(
    tensor: NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> NDArray:
    """Reduces the ranks' arrays and gives each rank its rows of the result.

    If the rows cannot be divided evenly, the first ranks of the set get one more each. Arrays of
    mx.nd cannot be empty, so they need at least one row for each rank. `op` is Average or Sum.
    """
    (output,), _ = _submit(
        OperationKind.REDUCESCATTER,
        tensor,
        _own_rows_of(process_set),
        name,
        process_set,
        lambda: _reducing(_scatterable_by(op), prescale_factor, postscale_factor, priority),
    )
    return output


def grouped_reducescatter(
    tensors: Sequence[NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Sequence[NDArray]:
    """Does a reducescatter of several arrays as one operation."""
    outputs, _ = _submit(
        OperationKind.REDUCESCATTER,
        tensors,
        _own_rows_of(process_set),
        name,
        process_set,
        lambda: _reducing(_scatterable_by(op), prescale_factor, postscale_factor, priority),
        grouped=True,
    )
    return outputs or tensors


def _submit(
    kind: OperationKind,
    tensors: Any,
    where: Callable[[NDArray], NDArray] | None,
    name: str | None,
    process_set: ProcessSet,
    options: Callable[[], dict[str, Any]],
    grouped: bool = False,
) -> tuple[list[NDArray], Any]:
    """Checks and submits an operation; if the checks fail, the other ranks are told.

    Args:
      tensors: an array, or if `grouped` several for one operation; nothing is submitted for none.
      where: gives the array for the result of an input; None if the library allocates it.
      options: gives the arguments of engine.submit that depend on the kind of operation.

    Returns the arrays for the results, and what to wait for if the library allocates them.
    """
    number = set_id(process_set)
    prefix = ("grouped_" if grouped else "") + kind.name.lower()
    with engine.refusing(kind, prefix, name, number):
        own = options()
        engine.require_member(number)
        inputs = checked_list(tensors) if grouped else [checked(tensors)]
        outputs = None if where is None else [where(tensor) for tensor in inputs]
    if not inputs:
        return [], None
    pending = engine.submit(kind, prefix, name, number, inputs, outputs, **own)
    return outputs or [], pending


def _itself(tensor: NDArray) -> NDArray:
    return tensor


def _reducing(op: int, prescale: float, postscale: float, priority: int) -> dict[str, Any]:
    return {
        "reduce_op": op,
        "prescale": real_number("prescale_factor", prescale),
        "postscale": real_number("postscale_factor", postscale),
        "priority": whole_number("priority", priority),
    }


def _from_root(root_rank: int, priority: int) -> dict[str, Any]:
    root, count = whole_number("root_rank", root_rank), size() if is_initialized() else None
    if count is not None and not 0 <= root < count:
        raise ValueError(f"root_rank is {root}; the ranks are 0 to {count - 1}")
    return {"root": root, "priority": whole_number("priority", priority)}


def _scatterable_by(op: int) -> int:
    op = checked_op(op)
    assert op in (Average, Sum), "reducescatter takes Average or Sum"
    return op


def _own_rows_of(process_set: ProcessSet) -> Callable[[NDArray], NDArray]:
    """Returns a function that makes the array for this rank's rows of a result."""

    def own_rows(tensor: NDArray) -> NDArray:
        if not tensor.shape:
            raise ValueError("reducescatter needs an array with at least one dimension")
        number = set_id(process_set)
        of_each, more = divmod(tensor.shape[0], perseus_core.process_set_size(number))
        own = of_each + (perseus_core.process_set_rank(number) < more)
        return empty_like(tensor, (own, *tensor.shape[1:]))

    return own_rows


def _rows(splits: NDArray | Sequence[int] | None) -> list[int]:
    if splits is None:
        return []
    try:
        rows = row_counts(splits.asnumpy() if isinstance(splits, NDArray) else splits)
    except ValueError as error:
        raise errors.wrong_argument(str(error)) from None
    if not rows:
        raise errors.wrong_argument("splits is empty; it takes one number of rows for each rank")
    return rows


__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "allreduce_",
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
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
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
