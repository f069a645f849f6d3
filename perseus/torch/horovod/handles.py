"""Operations under way: ints for the user, and here what must live until they are complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import copied_back
from perseus_core import _engine

# By handle: the tensors that the engine works on; the output, if it is not they; and what makes it
# or brings it up to date. Three tables, for with thousands of operations under way a tuple and a
# closure for each have Python's garbage collector go through everything again and again.
_pending: dict[int, Any] = {}
_outputs: dict[int, Any] = {}
_finishers: dict[int, Callable[[int], Any]] = {}


def track(
    handle: int, tensors: Any, finish: Callable[[int], Any] | None = None, *, output: Any = None
) -> int:
    """Keeps `tensors` alive until the handle is synchronized; gives the handle back.

    `finish` is called once, with the handle, when the operation has succeeded, and gives its
    output. Without it, that is `output`, or else `tensors`.
    """
    _pending[handle] = tensors
    if output is not None:
        _outputs[handle] = output
    if finish is not None:
        _finishers[handle] = finish
    return handle


def track_in_place(handle: int, buffer: torch.Tensor, tensor: torch.Tensor) -> int:
    """track for what is to be in `tensor`, and is made in `buffer`: a copy, or the same memory."""
    return track(handle, buffer, _copied_back, output=tensor)


def _copied_back(handle: int) -> torch.Tensor:
    return copied_back(_pending[handle], _outputs[handle])


@eager
def poll(handle: int) -> bool:
    """Whether the operation is complete, so that synchronize would not block.

    ValueError for a handle that was not created or has been synchronized, HorovodInternalError for
    one of the process that this one was forked from.
    """
    if _checked(handle) not in _pending:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    state = _engine.poll(handle)
    if state < 0:
        _engine.wait(handle)  # raises: the engine has no such operation
    return state != 0


@eager
def synchronize(handle: int) -> Any:
    """Waits for the operation and gives its output; None for an unknown handle.

    A handle can be synchronized once. Other Python threads run meanwhile. Raises
    HorovodInternalError if the operation failed.
    """
    return finish(_checked(handle))


def finish(handle: int) -> Any:
    """synchronize, for our own calls."""
    output = _pending.get(handle)
    if output is None:
        return None
    try:
        _engine.wait(handle)
        if handle in _finishers:
            output = _finishers[handle](handle)
        elif handle in _outputs:
            output = _outputs[handle]
    except BaseException:
        # After Ctrl-C the engine may still be at work on the tensors.
        if _engine.poll(handle) != 0:
            _forget(handle)
        raise
    _forget(handle)
    return output


def reset() -> None:
    """Forgets the operations of an engine that has shut down."""
    for handle in list(_pending):
        _forget(handle)


def _checked(handle: int) -> int:
    if not isinstance(handle, int):
        raise TypeError(f"handle is {type(handle).__name__}; it takes what an _async call gave")
    return handle


def _forget(handle: int) -> None:
    _finishers.pop(handle, None)
    _outputs.pop(handle, None)
    if _pending.pop(handle, None) is not None:
        _engine.release(handle)
