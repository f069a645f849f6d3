"""Operations in flight: the user has integers as handles, and this module their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from perseus.torch.horovod import async_completion
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import copied_back, shares_memory
from perseus_core import engine

# By handle: the output, and the function that makes or completes it if there is one. These are two
# tables, because a closure for each of thousands of operations in flight would make Python's
# garbage collector run often.
_outputs: dict[int, Any] = {}
_finishers: dict[int, Callable[[int], Any]] = {}


def track(handle: int, output: Any, finish: Callable[[int], Any] | None = None) -> int:
    """Stores the output for synchronize, and returns the handle.

    `finish`, if given, is called with the handle when the operation has succeeded, and returns the
    output in place of `output`.
    """
    _outputs[handle] = output
    if finish is not None:
        _finishers[handle] = finish
    return handle


def track_in_place(handle: int, buffer: torch.Tensor, tensor: torch.Tensor) -> int:
    """Does what track does for a result in `buffer` that belongs in `tensor`.

    `buffer` is a copy of the tensor, or has the same memory.
    """
    if shares_memory(buffer, tensor):
        return track(handle, tensor)
    return track(handle, tensor, lambda _: copied_back(buffer, tensor))


@eager
def poll(handle: int) -> bool:
    """Returns whether the operation is complete, so that synchronize would not block.

    Raises ValueError for a handle that was not created or has been synchronized, and
    HorovodInternalError for a handle of the process that this one was forked from.
    """
    if _checked(handle) not in _outputs:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    state = engine.poll(handle)
    if state < 0:
        engine.wait(handle)  # raises: the engine has no such operation
    return state != 0


@eager
def synchronize(handle: int) -> Any:
    """Waits for the operation and returns its output; None for an unknown handle.

    A handle can be synchronized once. Other Python threads run meanwhile. Raises
    HorovodInternalError if the operation failed. With PERSEUS_ASYNC_COMPLETION, the current CUDA
    stream waits in place of the host; see async_completion.
    """
    return finish(_checked(handle))


def finish(handle: int) -> Any:
    """Does what synchronize does, for our own calls."""
    if handle not in _outputs:
        return None
    is_known = True  # whether the outcome of the operation is known
    try:
        if async_completion.is_on():
            is_known = not async_completion.wait(handle, _outputs[handle])
        if is_known:
            engine.wait(handle)
    except BaseException:
        # After Ctrl-C it may still be in flight, or have succeeded.
        if engine.poll(handle) != 0 and engine.error(handle):
            _forget(handle)
        raise
    output = _outputs[handle]
    if handle in _finishers:
        output = _finishers[handle](handle)
    if is_known:
        _forget(handle)
    else:
        _finishers.pop(handle, None)
        del _outputs[handle]
        async_completion.release_later(handle)
    return output


def reset() -> None:
    """Drops the operations of an engine that has shut down."""
    async_completion.reset()
    for handle in list(_outputs):
        _forget(handle)


def _checked(handle: int) -> int:
    if not isinstance(handle, int):
        raise TypeError(f"handle is {type(handle).__name__}; it takes the result of an _async call")
    return handle


def _forget(handle: int) -> None:
    _finishers.pop(handle, None)
    if handle in _outputs:
        del _outputs[handle]
        engine.release(handle)
