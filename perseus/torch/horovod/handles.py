"""Operations under way: ints for the user, and here what must live until they are complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perseus.torch.horovod.eager import eager
from perseus_core import _engine

# By handle: the tensors that the engine works on, and what makes the output once it is done.
_pending: dict[int, tuple[object, Callable[[int], Any]]] = {}


def track(handle: int, tensors: object, finish: Callable[[int], Any]) -> int:
    """Keeps `tensors` alive until the handle is synchronized; gives the handle back.

    `finish` is called once, with the handle, when the operation has succeeded.
    """
    _pending[handle] = (tensors, finish)
    return handle


@eager
def poll(handle: int) -> bool:
    """Whether the operation is complete, so that synchronize would not block.

    ValueError for a handle that was not created or has been synchronized.
    """
    if _checked(handle) not in _pending:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return _engine.poll(handle) != 0


@eager
def synchronize(handle: int) -> Any:
    """Waits for the operation and gives its output; None for an unknown handle.

    A handle can be synchronized once. Other Python threads run meanwhile. Raises
    HorovodInternalError if the operation failed.
    """
    return finish(_checked(handle))


def finish(handle: int) -> Any:
    """synchronize, for our own calls."""
    entry = _pending.get(handle)
    if entry is None:
        return None
    try:
        _engine.wait(handle)
        output = entry[1](handle)
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
    if _pending.pop(handle, None) is not None:
        _engine.release(handle)
