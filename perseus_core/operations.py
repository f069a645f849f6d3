"""Collectives on arrays of any kind.

Arrays in CPU memory (see perseus_core.arrays) give NumPy arrays as results. Arrays on GPUs (see
perseus_core.gpu_arrays) give arrays of the same library, or GpuArray. All ranks must use the same
kind of memory.

Every rank of the process set must make the call, under the same name; unnamed calls are matched in
their order. `<collective>_async` returns a Handle at once, the plain form waits. A mistake that is
found on this rank raises ValueError or TypeError here, and MismatchError on the other ranks. If the
ranks' calls do not fit together (different shapes, ...), all ranks raise MismatchError. In both
cases the job can go on.

Common arguments:
  name: what ranks match operations by; must not be in flight already.
  process_set: an id from add_process_set; the world by default.
  out: the array for the result, of the input's shape and dtype, in the same kind of memory. It may
    be the input itself.
  priority: higher goes first.
  callback: called with the Handle once the operation is complete, on a thread of Perseus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from perseus_core import _engine, callbacks, gpu_arrays, names, opened_sets, refusals, submission
from perseus_core.arguments import real_number, row_counts, whole_number
from perseus_core.arrays import (
    Array,
    ArrayLike,
    as_array,
    as_input,
    dtype_number,
    from_result,
    is_plain,
)
from perseus_core.constants import WORLD, OperationKind, ReduceOp
from perseus_core.engine import Operand
from perseus_core.gpu_arrays import GpuPair
from perseus_core.handle import Handle, T

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "join",
    "reducescatter",
    "reducescatter_async",
]

Callback: TypeAlias = Callable[[Handle[Any]], object]


def allreduce(
    array: ArrayLike,
    op: ReduceOp = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: int = WORLD,
    out: ArrayLike = None,
    priority: int = 0,
    codec: int = 0,
) -> Array:
    """Reduces the ranks' arrays element by element; all ranks get the result.

    Args:
      prescale, postscale: inputs are multiplied by the former first, results by the latter last.
      codec: from find_codec; 0 for the one in the settings.
    """
    arguments = (name, prescale, postscale, process_set, out, priority, codec)
    pair, handle = _start_allreduce(array, op, *arguments, callback=None, waits=True)
    return pair.finish(0) if handle is None else handle.wait()


def allreduce_async(
    array: ArrayLike,
    op: ReduceOp = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: int = WORLD,
    out: ArrayLike = None,
    priority: int = 0,
    codec: int = 0,
    callback: Callback | None = None,
) -> Handle[Array]:
    """Starts an allreduce; the Handle gives its result. See allreduce."""
    arguments = (name, prescale, postscale, process_set, out, priority, codec)
    _, handle = _start_allreduce(array, op, *arguments, callback=callback, waits=False)
    assert handle is not None
    return handle


def _start_allreduce(
    array: ArrayLike,
    op: ReduceOp,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: int,
    out: ArrayLike,
    priority: int,
    codec: int,
    *,
    callback: Callback | None,
    waits: bool,
) -> tuple[_Pair | GpuPair, Handle[Array] | None]:
    """Returns no Handle if the operation is complete, as it may be if the caller waits for it."""
    try:
        pair = _pair(array, out)
        work = (
            *pair.described(),
            whole_number("op", op),
            real_number("prescale", prescale),
            real_number("postscale", postscale),
            whole_number("priority", priority),
            whole_number("codec", codec),
        )
        handle = Handle(pair.finish)
        complete = None if callback is None else callbacks.completion(handle, callback)
        process_set = whole_number("process_set", process_set)
    except Exception as error:
        refusals.refuse_call(OperationKind.ALLREDUCE, "allreduce", name, process_set, error)
        raise
    if waits and not pair.place:
        send, rest = _engine.run_allreduce, work
    else:
        send, rest = _engine.submit_allreduce, (*work, complete, *pair.place)
    number = submission.submit(
        OperationKind.ALLREDUCE, "allreduce", name, process_set, pair, send, *rest
    )
    if number == 0:
        return pair, None
    handle.submitted(number)
    return pair, handle


def grouped_allreduce(
    arrays: Sequence[ArrayLike],
    op: ReduceOp = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: int = WORLD,
    priority: int = 0,
) -> list[Array]:
    """allreduce of several arrays that are agreed on, and complete, as one."""
    return grouped_allreduce_async(
        arrays,
        op,
        name=name,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        priority=priority,
    ).wait()


def grouped_allreduce_async(
    arrays: Sequence[ArrayLike],
    op: ReduceOp = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: int = WORLD,
    priority: int = 0,
    callback: Callback | None = None,
) -> Handle[list[Array]]:
    """Starts a grouped allreduce; the Handle gives its result. See grouped_allreduce."""
    with refusals.refusing(OperationKind.ALLREDUCE, "grouped_allreduce", name, process_set):
        pairs = _group(arrays)
        options = _reduction(op, prescale, postscale, priority)
    return _submit(
        OperationKind.ALLREDUCE,
        "grouped_allreduce",
        name,
        process_set,
        pairs,
        lambda number: [pair.finish(number, i) for i, pair in enumerate(pairs)],
        pairs,
        callback,
        **options,
    )


def broadcast(
    array: ArrayLike,
    root: int,
    *,
    name: str | None = None,
    process_set: int = WORLD,
    out: ArrayLike = None,
    priority: int = 0,
) -> Array:
    """Gives every rank the array of `root`, a rank of the world that is in the set."""
    return broadcast_async(
        array, root, name=name, process_set=process_set, out=out, priority=priority
    ).wait()


def broadcast_async(
    array: ArrayLike,
    root: int,
    *,
    name: str | None = None,
    process_set: int = WORLD,
    out: ArrayLike = None,
    priority: int = 0,
    callback: Callback | None = None,
) -> Handle[Array]:
    """Starts a broadcast; the Handle gives its result. See broadcast."""
    with refusals.refusing(OperationKind.BROADCAST, "broadcast", name, process_set):
        pair = _pair(array, out)
        root = whole_number("root", root)
        priority = whole_number("priority", priority)
    return _submit(
        OperationKind.BROADCAST,
        "broadcast",
        name,
        process_set,
        pair,
        pair.finish,
        [pair],
        callback,
        root=root,
        priority=priority,
    )


def allgather(array: ArrayLike, *, name: str | None = None, process_set: int = WORLD) -> Array:
    """Concatenates the ranks' arrays along the first dimension, which may differ between ranks."""
    return allgather_async(array, name=name, process_set=process_set).wait()


def allgather_async(
    array: ArrayLike,
    *,
    name: str | None = None,
    process_set: int = WORLD,
    callback: Callback | None = None,
) -> Handle[Array]:
    """Starts an allgather; the Handle gives its result. See allgather."""
    with refusals.refusing(OperationKind.ALLGATHER, "allgather", name, process_set):
        source = _input(array)
    return _submit(
        OperationKind.ALLGATHER,
        "allgather",
        name,
        process_set,
        source,
        source.finish,
        [source],
        callback,
    )


def alltoall(
    array: ArrayLike,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: int = WORLD,
) -> tuple[Array, list[int]]:
    """Sends each rank of the set some rows, and returns the rows received, in rank order.

    Args:
      splits: how many rows of the first dimension each rank gets; None for equal parts.

    Returns the rows received, and how many came from each rank.
    """
    return alltoall_async(array, splits, name=name, process_set=process_set).wait()


def alltoall_async(
    array: ArrayLike,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: int = WORLD,
    callback: Callback | None = None,
) -> Handle[tuple[Array, list[int]]]:
    """Starts an alltoall; the Handle gives its result. See alltoall."""
    with refusals.refusing(OperationKind.ALLTOALL, "alltoall", name, process_set):
        source = _input(array)
        rows = None if splits is None else row_counts(splits)

    def finish(number: int) -> tuple[Array, list[int]]:
        result = _engine.Result(number)
        return source.given(result), list(result.received_splits)

    return _submit(
        OperationKind.ALLTOALL,
        "alltoall",
        name,
        process_set,
        source,
        finish,
        [source],
        callback,
        splits=rows,
    )


def reducescatter(
    array: ArrayLike,
    op: ReduceOp = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: int = WORLD,
    priority: int = 0,
) -> Array:
    """Reduces the ranks' arrays; each rank gets its rows of the result.

    If the rows cannot be divided evenly, the first ranks get one more each.
    """
    return reducescatter_async(
        array,
        op,
        name=name,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        priority=priority,
    ).wait()


def reducescatter_async(
    array: ArrayLike,
    op: ReduceOp = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: int = WORLD,
    priority: int = 0,
    callback: Callback | None = None,
) -> Handle[Array]:
    """Starts a reducescatter; the Handle gives its result. See reducescatter."""
    with refusals.refusing(OperationKind.REDUCESCATTER, "reducescatter", name, process_set):
        process_set = whole_number("process_set", process_set)
        source = _input(array, lambda rows: _own_rows(rows, process_set))
        options = _reduction(op, prescale, postscale, priority)
    return _submit(
        OperationKind.REDUCESCATTER,
        "reducescatter",
        name,
        process_set,
        source,
        source.finish,
        [source],
        callback,
        **options,
    )


def barrier(*, process_set: int = WORLD) -> None:
    """Returns once all ranks of the set have called it."""
    process_set = whole_number("process_set", process_set)
    number = _engine.register(process_set, OperationKind.BARRIER, "barrier.noname")
    _engine.finish(_engine.submit(number, None, []))


def join() -> int:
    """Declares that this rank has no more data, and waits until all ranks have done so.

    Meanwhile this rank takes part in the operations of the others, also in its process sets, with
    neutral data: zeros in a sum, no rows in a gather. An average still counts all ranks. A
    broadcast from this rank fails. Returns the rank that joined last, the same on all ranks.
    """
    handles = [
        _engine.submit(_engine.register(number, OperationKind.JOIN, "join.noname"), None, [])
        for number in (WORLD, *_own_sets())
    ]
    try:
        for handle in handles:
            _engine.wait(handle)
        names.all_have_joined()
        return _engine.last_rank(handles[0])
    finally:
        for handle in handles:
            _engine.release(handle)


def _own_sets() -> list[int]:
    """Returns the sets that all ranks know and this rank is in, except the world.

    The sets in perseus_core.opened_sets are not among them: join has no meaning in those.
    """
    return [
        number
        for number in _engine.process_sets()
        if number > WORLD
        and not opened_sets.is_opened(number)
        and _engine.process_set_rank(number) >= 0
    ]


def _pair(array: ArrayLike, out: ArrayLike) -> _Pair | GpuPair:
    """Returns an input and the array for its result, in the memory of the CPU or of a GPU."""
    if type(array) is np.ndarray and (out is None or type(out) is np.ndarray):
        return _Pair(array, out)
    if not gpu_arrays.is_on_gpu(array) and (out is None or not gpu_arrays.is_on_gpu(out)):
        return _Pair(array, out)
    return gpu_arrays.pairs([array], [out])[0]


def _input(
    array: ArrayLike, rows_of_result: Callable[[int], int | None] = lambda _: None
) -> _Input | GpuPair:
    """Returns an input whose result has another number of rows.

    Args:
      rows_of_result: from the rows of the input to those of the result; None if they are not known
        before the operation is complete.
    """
    if not gpu_arrays.is_on_gpu(array):
        return _Input(array)
    return gpu_arrays.lone_input(array, rows_of_result)


def _own_rows(rows: int, process_set: int) -> int | None:
    """Returns how many rows of a reduce-scatter's result this rank gets; None if it gets none."""
    size, rank = _engine.process_set_size(process_set), _engine.process_set_rank(process_set)
    return None if rank < 0 else rows // size + (rank < rows % size)


def _group(arrays: Sequence[ArrayLike]) -> Sequence[_Pair | GpuPair]:
    arrays = list(arrays)
    if any(gpu_arrays.is_on_gpu(array) for array in arrays):
        return gpu_arrays.pairs(arrays, [None] * len(arrays))
    return [_Pair(array, None) for array in arrays]


class _Input:
    """An input in CPU memory. The engine allocates its result."""

    __slots__ = ("source",)

    #: as in GpuPair; empty for CPU memory
    place: ClassVar[tuple[()]] = ()

    def __init__(self, array: ArrayLike) -> None:
        self.source = as_input(array)

    def described(self) -> Operand:
        return _described(self.source)

    def finish(self, number: int) -> Array:
        return self.given(_engine.Result(number))

    def given(self, result: _engine.Result) -> Array:
        return from_result(result, self.source.dtype)


class _Pair:
    """An input in CPU memory and the array for its result: a new one, or the caller's.

    The engine writes into a copy of the caller's array if that is not plain memory.
    """

    __slots__ = ("source", "target", "wanted")

    place: ClassVar[tuple[()]] = ()

    def __init__(self, array: ArrayLike, out: ArrayLike) -> None:
        self.source = as_input(array)
        if out is None:
            self.wanted = self.target = _empty_like(self.source)
            return
        self.wanted = as_array(out)
        if not self.wanted.flags.writeable:
            raise ValueError("out is read-only")
        if self.wanted.shape != self.source.shape or not _same_type(self.wanted, self.source):
            raise ValueError(
                f"out is {self.wanted.dtype.name}{list(self.wanted.shape)}, the input "
                f"{self.source.dtype.name}{list(self.source.shape)}; they must be the same"
            )
        self.target = self.wanted if is_plain(self.wanted) else _empty_like(self.source)

    def described(self) -> Operand:
        return _described(self.source, self.target)

    def finish(self, number: int, index: int = 0) -> Array:
        if self.wanted is not self.target:
            self.wanted[...] = self.target
        return self.wanted


def _reduction(op: int, prescale: float, postscale: float, priority: int) -> dict[str, Any]:
    return {
        "reduce_op": whole_number("op", op),
        "prescale": real_number("prescale", prescale),
        "postscale": real_number("postscale", postscale),
        "priority": whole_number("priority", priority),
    }


def _same_type(one: Array, other: Array) -> bool:
    """Returns whether the dtypes are the same, except for the order of bytes."""
    return one.dtype is other.dtype or one.dtype.name == other.dtype.name


def _empty_like(array: Array) -> Array:
    return np.empty(array.shape, array.dtype)


def _described(source: Array, target: Array | None = None) -> Operand:
    output = 0 if target is None else _engine.array_address(target)
    return _engine.array_address(source), output, source.shape, dtype_number(source.dtype)


def _submit(
    kind: OperationKind,
    prefix: str,
    name: str | None,
    process_set: int,
    keep: object,
    finish: Callable[[int], T],
    tensors: Sequence[_Pair | _Input | GpuPair],
    callback: Callback | None,
    **options: Any,
) -> Handle[T]:
    process_set = whole_number("process_set", process_set)
    described = [tensor.described() for tensor in tensors]
    if tensors and tensors[0].place:
        options["place"] = tensors[0].place
    handle = Handle(finish)
    if callback is not None:
        with refusals.refusing(kind, prefix, name, process_set):
            options["callback"] = callbacks.completion(handle, callback)
    handle.submitted(
        submission.submit(
            kind, prefix, name, process_set, keep, _engine.submit, described, **options
        )
    )
    return handle
