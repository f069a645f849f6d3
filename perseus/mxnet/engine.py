"""Runs operations as operations of MXNet's engine, through frameworks/mxnet.

An operation runs when the arrays that it reads and writes are ready, and code that uses the result
waits for it. The caller only waits for results whose size is not known in advance.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

import perseus_core
from perseus.common.exceptions import HorovodVersionMismatchError
from perseus.common.stacklevel import user_stacklevel
from perseus.mxnet import errors
from perseus_core import OperationKind, ReduceOp, refusals, submission
from perseus_core.errors import AbortedError, NotInitializedError, mark_reported
from perseus_core.process import NOT_INITIALIZED

__all__ = [
    "NDArray",
    "Pending",
    "checked",
    "checked_list",
    "copy_to",
    "drain",
    "empty_like",
    "refusing",
    "refusing_all",
    "require_member",
    "submit",
]

_SENDABLE = {"float32", "float64", "float16", "uint8", "int8", "int32", "int64", "bool"}
#: This engine of MXNet runs operations at once, and keeps no errors for later.
_IS_NAIVE = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"
_IN_PROGRESS = 11  # PERSEUS_IN_PROGRESS
#: How often a wait lets Python handle signals, in ms.
_SIGNAL_CHECK_MS = 100
#: When leaving, how long to wait for the next operation to end: the time after which an operation
#: is reported as stalled.
_DRAIN_SECONDS = "PERSEUS_STALL_CHECK_TIME_SECONDS"


class _Call(ctypes.Structure):
    """perseus_mxnet_call_t of frameworks/mxnet/engine_operation.h."""

    _fields_ = (
        ("id", ctypes.c_int32),
        ("operation", ctypes.c_int32),
        ("reduce_op", ctypes.c_int32),
        ("root", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("split_count", ctypes.c_int32),
        ("array_count", ctypes.c_int32),
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("is_naive", ctypes.c_int32),
    )


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(perseus_core.__file__).parent / "lib/libperseus_mxnet.so"))
    library.perseus_mxnet_open.restype = ctypes.c_char_p
    library.perseus_mxnet_push.restype = ctypes.c_char_p
    library.perseus_mxnet_message.restype = ctypes.c_char_p
    library.perseus_mxnet_shape.restype = ctypes.POINTER(ctypes.c_int64)
    library.perseus_mxnet_received_splits.restype = ctypes.POINTER(ctypes.c_int64)
    library.perseus_mxnet_wait.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    library.perseus_mxnet_settle.argtypes = (ctypes.c_int64,)
    library.perseus_mxnet_settle.restype = ctypes.c_int64
    library.perseus_mxnet_release.restype = None
    library.perseus_mxnet_refuse.restype = None
    if wrong := library.perseus_mxnet_open(mx.base._LIB._name.encode()).decode():
        raise HorovodVersionMismatchError("mxnet", "1.9", mx.__version__) from ImportError(wrong)
    return library


_library = _load()


class Pending:
    """An operation whose results the library allocates."""

    def __init__(self, outcome: int, inputs: Sequence[NDArray]) -> None:
        self._outcome = ctypes.c_void_p(outcome)
        self._inputs = inputs

    def __del__(self) -> None:
        _library.perseus_mxnet_release(self._outcome)

    def wait(self) -> list[NDArray]:
        """Waits and returns the results, of the inputs' kind; raises if the operation failed."""
        self.wait_for_end()
        return [self._take(index, like) for index, like in enumerate(self._inputs)]

    def wait_for_end(self) -> None:
        """Waits for the operation; raises if it failed."""
        while (
            status := _library.perseus_mxnet_wait(self._outcome, _SIGNAL_CHECK_MS)
        ) == _IN_PROGRESS:
            pass
        if status != 0:
            message = _library.perseus_mxnet_message(self._outcome).decode(errors="replace")
            error = errors.from_status(status, message)
            if isinstance(error, AbortedError):
                for array in self._inputs:
                    array.wait_to_read()  # raises if the operation that computes it has failed
            raise error

    def received_splits(self) -> list[int]:
        """Returns how many rows a complete alltoall received from each rank of the set."""
        count = ctypes.c_int32()
        splits = _library.perseus_mxnet_received_splits(self._outcome, ctypes.byref(count))
        rows: list[int] = splits[: count.value]
        return rows

    def _take(self, index: int, like: NDArray) -> NDArray:
        handle = mx.base.NDArrayHandle()
        taken = _library.perseus_mxnet_take(self._outcome, index, ctypes.byref(handle))
        mx.base.check_call(taken)
        if handle.value:
            # MXNet has several CPU contexts, which share one memory.
            return type(like)(handle).as_in_context(like.context)
        rank = ctypes.c_int32()
        shape = _library.perseus_mxnet_shape(self._outcome, index, ctypes.byref(rank))
        return empty_like(like, tuple(shape[: rank.value]))


def submit(
    kind: OperationKind,
    prefix: str,
    name: str | None,
    process_set: int,
    inputs: Sequence[NDArray],
    outputs: Sequence[NDArray] | None,
    *,
    reduce_op: int = ReduceOp.SUM,
    root: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    splits: Sequence[int] = (),
    priority: int = 0,
) -> Pending | None:
    """Submits an operation to MXNet's engine; returns what to wait for if `outputs` is None.

    Calls of one name run one after the other, in their order, whatever arrays they use.
    """
    pending: list[Pending] = []

    def send(id: int, keep: object) -> int:
        call = _Call(
            id=id,
            operation=kind,
            reduce_op=reduce_op,
            root=root,
            priority=priority,
            prescale=prescale,
            postscale=postscale,
            splits=(ctypes.c_int64 * len(splits))(*splits),
            split_count=len(splits),
            array_count=len(inputs),
            inputs=_handles(inputs),
            outputs=None if outputs is None else _handles(outputs),
            is_naive=_IS_NAIVE,
        )
        outcome = ctypes.c_void_p()
        wrong = _library.perseus_mxnet_push(ctypes.byref(call), ctypes.byref(outcome))
        if wrong:
            error = mx.MXNetError(wrong.decode(errors="replace"))
            mark_reported(error)
            raise error
        if outcome.value:
            pending.append(Pending(outcome.value, inputs))
        return _ENGINES_OWN

    submission.submit(kind, prefix, name, process_set, None, send)
    if outputs is not None and pending:
        pending[0].wait_for_end()
        return None
    return pending[0] if pending else None


#: In place of a handle, which does not exist yet. No operation has this number.
_ENGINES_OWN = 0


def refusing(
    kind: OperationKind, prefix: str, name: str | None, process_set: int
) -> refusals.refusing:
    """Does what refusals.refusing does, after this rank's earlier calls."""
    return refusals.refusing(kind, prefix, name, process_set, _tell)


def refusing_all(
    kind: OperationKind, prefix: str, of_names: Iterable[str], process_set: int
) -> contextlib.AbstractContextManager[None]:
    """Does what `refusing` does for a call that starts operations of several names."""
    return refusals.refusing_all(kind, prefix, of_names, process_set, _tell)


def _tell(id: int, reason: str) -> None:
    _library.perseus_mxnet_refuse(id, reason.encode())


def require_member(process_set: int) -> None:
    """Raises NotInitializedError before init, ValueError on a rank that is not in the set."""
    if not perseus_core.is_initialized():
        raise NotInitializedError(NOT_INITIALIZED)
    if perseus_core.process_set_rank(process_set) < 0:
        why = f"rank {perseus_core.rank()} is not in process set {process_set}"
        raise errors.wrong_argument(why)


def checked(tensor: Any, argument: str = "tensor") -> NDArray:
    """Returns the array; raises TypeError or ValueError if it cannot be sent."""
    if not isinstance(tensor, NDArray):
        raise TypeError(f"{argument} is {type(tensor).__name__}; it takes an array of MXNet")
    if tensor.stype != "default":
        raise ValueError(
            f"{argument} is {tensor.stype}; only dense arrays can be sent: tostype('default') "
            "gives one, and layers without sparse_grad have dense gradients"
        )
    if np.dtype(tensor.dtype).name not in _SENDABLE:
        raise ValueError(f"{argument} is of {np.dtype(tensor.dtype)}, which cannot be sent")
    return tensor


def checked_list(tensors: Any) -> list[NDArray]:
    """Returns the arrays of a group; raises ValueError also if they are on several devices."""
    # Iterating over an array would give its rows.
    if isinstance(tensors, NDArray) or not hasattr(tensors, "__iter__"):
        raise TypeError(f"tensors is {type(tensors).__name__}; it takes a list of MXNet arrays")
    group = [checked(tensor, f"tensors[{i}]") for i, tensor in enumerate(tensors)]
    for tensor in group:
        if tensor.context != group[0].context:
            raise ValueError(
                f"the group has arrays on {group[0].context} and on {tensor.context}; all arrays "
                "of a group must be on one device"
            )
    return group


def empty_like(tensor: NDArray, shape: tuple[int, ...] | None = None) -> NDArray:
    """Returns a new array of the same kind, type and device, with the same shape by default.

    Its memory is allocated when something is written to it, like that of MXNet's own results. If it
    were allocated here, it would often lie just before memory that is kept for a new name, and
    glibc's malloc could not reuse the gap when it is freed.
    """
    shape = tensor.shape if shape is None else shape
    new = mx.nd.ndarray._new_alloc_handle
    if isinstance(tensor, mx.np.ndarray):
        with mx.util.np_shape(True):
            return mx.np.ndarray(handle=new(shape, tensor.context, True, tensor.dtype))
    if 0 in shape:
        raise ValueError(f"an array of shape {shape} has no elements; only mx.np has such arrays")
    return NDArray(new(shape, tensor.context, True, tensor.dtype))


def copy_to(source: NDArray, targets: Iterable[NDArray]) -> None:
    """Copies an array to others, except itself."""
    for target in targets:
        if target is not source:
            source.copyto(target)


def drain() -> None:
    """Waits for the operations that MXNet has been given, as MXNet does at its end.

    Other ranks may submit them later. If none ends for a while, it warns and gives up, because
    other ranks may never submit them.
    """
    (seconds,) = [each.value for each in perseus_core.settings() if each.name == _DRAIN_SECONDS]
    left = _library.perseus_mxnet_settle(1000 * int(seconds))
    if left:
        warnings.warn(
            f"rank {perseus_core.rank()} leaves before {left} of its operations are complete: none "
            f"has ended for {seconds} s ({_DRAIN_SECONDS}), because other ranks have not submitted "
            "them. Their results are invalid",
            RuntimeWarning,
            stacklevel=user_stacklevel(),
        )


def _handles(arrays: Sequence[NDArray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.handle.value for array in arrays))
