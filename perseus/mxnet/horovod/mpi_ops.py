"""The operations. MXNet's engine runs them when their arrays are ready, and only who uses a result
waits for it; allgather and alltoall wait, since the result's size is not known before.

Common arguments:
  tensor: an array of mx.nd or mx.np, dense; the result is one of the same.
  name: what ranks match the call by; None: the order of the calls without one.
  priority: higher goes first, in MXNet's engine and in Perseus's.
  process_set: the ranks that take part.

A mistake seen here raises ValueError or TypeError, and the other ranks' calls fail with it. What
only the ranks together can see, such as shapes that differ, raises where the result is waited for
(asnumpy, wait_to_read): an MXNetError, which is also a HorovodInternalError, on all ranks.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from typing import Any

import mxnet as mx

import perseus_core
from perseus.common.process import basics as _basics
from perseus.common.process import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    size,
    start_timeline,
    stop_timeline,
)
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
from perseus.mxnet import engine
from perseus.mxnet.engine import NDArray, checked, checked_list, empty_like
from perseus_core import OperationKind
from perseus_core.arguments import real_number, row_counts, whole_number


def init(comm: Any = None, process_sets: str | Sequence[ProcessSet] | None = None) -> None:
    """Joins the other processes of the job; see perseus.common.basics.Basics.init."""
    is_first = not is_initialized()
    _basics.init(comm, process_sets)
    if is_first:
        # Before what init has registered: the last to come is the first to run.
        atexit.unregister(_settle_down)
        atexit.register(_settle_down)


def shutdown() -> None:
    """Leaves the job when the operations that MXNet's engine was given have ended. Waits for
    PERSEUS_STALL_CHECK_TIME_SECONDS at most for one of which other ranks know nothing: it fails.
    init may follow."""
    if is_initialized():
        engine.settle_down()
    _basics.shutdown()


def _settle_down() -> None:
    # A script that has failed leaves at once.
    if getattr(sys, "last_value", None) is None and is_initialized():
        engine.settle_down()


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
      average: deprecated; in place of op=Average or op=Sum.
      prescale_factor, postscale_factor: what inputs are multiplied by first, and results last.
      op: Average (if None), Sum, Min, Max, Product or Adasum.
    """
    number = set_id(process_set)
    with engine.refusing(OperationKind.ALLREDUCE, "allreduce", name, number):
        options = _reducing(resolve_op(op, average), prescale_factor, postscale_factor, priority)
        engine.require_member(number)
        output = empty_like(checked(tensor))
    engine.submit(OperationKind.ALLREDUCE, "allreduce", name, number, [tensor], [output], **options)
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
    """allreduce in place; gives the array back."""
    number = set_id(process_set)
    with engine.refusing(OperationKind.ALLREDUCE, "allreduce", name, number):
        options = _reducing(resolve_op(op, average), prescale_factor, postscale_factor, priority)
        engine.require_member(number)
        checked(tensor)
    engine.submit(OperationKind.ALLREDUCE, "allreduce", name, number, [tensor], [tensor], **options)
    return tensor


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
    """allreduce of several arrays that are agreed on, and complete, as one."""
    number = set_id(process_set)
    with engine.refusing(OperationKind.ALLREDUCE, "grouped_allreduce", name, number):
        options = _reducing(resolve_op(op, average), prescale_factor, postscale_factor, priority)
        engine.require_member(number)
        group = checked_list(tensors)
        outputs = [empty_like(tensor) for tensor in group]
    if not group:
        return tensors
    engine.submit(
        OperationKind.ALLREDUCE, "grouped_allreduce", name, number, group, outputs, **options
    )
    return outputs


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
    """grouped_allreduce in place; gives the arrays back, of which no two may share memory."""
    number = set_id(process_set)
    with engine.refusing(OperationKind.ALLREDUCE, "grouped_allreduce", name, number):
        options = _reducing(resolve_op(op, average), prescale_factor, postscale_factor, priority)
        engine.require_member(number)
        group = checked_list(tensors)
    if group:
        engine.submit(
            OperationKind.ALLREDUCE, "grouped_allreduce", name, number, group, group, **options
        )
    return tensors if isinstance(tensors, Sequence) else group


def allgather(
    tensor: NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Joins the ranks' arrays by their first dimension, in which they may differ, in the order of
    the ranks. Waits for the result."""
    number = set_id(process_set)
    with engine.refusing(OperationKind.ALLGATHER, "allgather", name, number):
        options = {"priority": whole_number("priority", priority)}
        engine.require_member(number)
        checked(tensor)
    pending = engine.submit(
        OperationKind.ALLGATHER, "allgather", name, number, [tensor], None, **options
    )
    return pending.wait()[0]


def grouped_allgather(
    tensors: Sequence[NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Sequence[NDArray]:
    """allgather of several arrays as one operation."""
    number = set_id(process_set)
    with engine.refusing(OperationKind.ALLGATHER, "grouped_allgather", name, number):
        options = {"priority": whole_number("priority", priority)}
        engine.require_member(number)
        group = checked_list(tensors)
    if not group:
        return tensors
    pending = engine.submit(
        OperationKind.ALLGATHER, "grouped_allgather", name, number, group, None, **options
    )
    return pending.wait()


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """The array of a rank of the world, whose shape and dtype all have, as a new one."""
    number = set_id(process_set)
    with engine.refusing(OperationKind.BROADCAST, "broadcast", name, number):
        options = _from_root(root_rank, priority)
        engine.require_member(number)
        output = empty_like(checked(tensor))
    engine.submit(OperationKind.BROADCAST, "broadcast", name, number, [tensor], [output], **options)
    return output


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """broadcast in place; gives the array back."""
    number = set_id(process_set)
    with engine.refusing(OperationKind.BROADCAST, "broadcast", name, number):
        options = _from_root(root_rank, priority)
        engine.require_member(number)
        checked(tensor)
    engine.submit(OperationKind.BROADCAST, "broadcast", name, number, [tensor], [tensor], **options)
    return tensor


def alltoall(
    tensor: NDArray,
    splits: NDArray | Sequence[int] | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray | tuple[NDArray, NDArray]:
    """Sends rows to each rank and gives those that came, in the order of the ranks. Waits for them.

    Args:
      splits: how many rows go to each rank of the set; None: as many to each, and the result is the
        rows alone.

    Returns the rows, and with `splits` also how many came from each rank, as int32.
    """
    number = set_id(process_set)
    with engine.refusing(OperationKind.ALLTOALL, "alltoall", name, number):
        options = {"priority": whole_number("priority", priority), "splits": _rows(splits)}
        engine.require_member(number)
        checked(tensor)
    pending = engine.submit(
        OperationKind.ALLTOALL, "alltoall", name, number, [tensor], None, **options
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

    Rows that do not divide go one each to the first ranks of the set. `op` is Average or Sum.
    """
    number = set_id(process_set)
    with engine.refusing(OperationKind.REDUCESCATTER, "reducescatter", name, number):
        options = _reducing(_scatterable_by(op), prescale_factor, postscale_factor, priority)
        engine.require_member(number)
        output = _own_rows(checked(tensor), number)
    engine.submit(
        OperationKind.REDUCESCATTER, "reducescatter", name, number, [tensor], [output], **options
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
    """reducescatter of several arrays as one operation."""
    number = set_id(process_set)
    with engine.refusing(OperationKind.REDUCESCATTER, "grouped_reducescatter", name, number):
        options = _reducing(_scatterable_by(op), prescale_factor, postscale_factor, priority)
        engine.require_member(number)
        group = checked_list(tensors)
        outputs = [_own_rows(tensor, number) for tensor in group]
    if not group:
        return tensors
    engine.submit(
        OperationKind.REDUCESCATTER,
        "grouped_reducescatter",
        name,
        number,
        group,
        outputs,
        **options,
    )
    return outputs


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


def _own_rows(tensor: NDArray, process_set: int) -> NDArray:
    """Where this rank's rows of the result go."""
    if not tensor.shape:
        raise ValueError("reducescatter needs an array with at least one dimension")
    of_each, more = divmod(tensor.shape[0], perseus_core.process_set_size(process_set))
    own = of_each + (perseus_core.process_set_rank(process_set) < more)
    return empty_like(tensor, (own, *tensor.shape[1:]))


def _rows(splits: NDArray | Sequence[int] | None) -> list[int]:
    if splits is None:
        return []
    rows = row_counts(splits.asnumpy() if isinstance(splits, NDArray) else splits)
    if not rows:
        raise ValueError("splits is empty; it takes one number of rows for each rank")
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
]
