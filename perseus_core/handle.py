"""An operation under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from perseus_core import _engine

__all__ = ["Handle", "poll", "wait"]

T = TypeVar("T")

# Arrays of operations whose Handle was dropped too early: the engine still works on them.
_abandoned: dict[int, object] = {}


class Handle(Generic[T]):
    """An operation under way. Any thread may call its methods.

    It keeps the operation's arrays alive, even where it is dropped before the end.
    """

    __slots__ = (
        *("_arrays", "_ended", "_error", "_finish", "_lock", "_number", "_value"),
        *("__dict__", "__weakref__"),  # as users may have come to expect
    )

    def __init__(self, arrays: object, finish: Callable[[int], T]) -> None:
        """`finish` makes the result, once, from the number of the complete operation."""
        self._number = 0
        self._arrays = arrays
        self._finish = finish
        self._lock = threading.Lock()
        self._ended = False
        self._value: T | None = None
        self._error: Exception | None = None

    def submitted(self, number: int) -> None:
        """Tells the engine's number for the operation."""
        self._number = number

    def poll(self) -> bool:
        """Whether the operation is complete, so that wait() would not block.

        Raises NotInitializedError in a child that was forked meanwhile.
        """
        if self._ended:
            return True
        state = _engine.poll(self._number)
        if state < 0 and not self._ended:
            _engine.wait(self._number)  # raises: the engine has no such operation
        return state != 0

    def wait(self, timeout: float | None = None) -> T:
        """Waits and gives the operation's result; the same one however often it is called.

        Args:
          timeout: seconds; None waits without bound. TimeoutError when it ends first; the
            operation goes on.

        Raises HorovodInternalError, on every rank that takes part, if the operation failed; at
        once, in a child that was forked meanwhile.
        """
        if not self._ended:
            if not self._lock.acquire(blocking=False):
                self.poll()  # in a forked child, the thread that has the lock is not there
                if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
                    raise TimeoutError(f"the operation is not complete after {timeout} s")
            try:
                if not self._ended:
                    self._end(timeout)
            finally:
                self._lock.release()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _end(self, timeout: float | None) -> None:
        try:
            if not _engine.wait(self._number, -1 if timeout is None else int(timeout * 1000)):
                raise TimeoutError(f"the operation is not complete after {timeout} s")
            self._value = self._finish(self._number)
        except Exception as error:
            if _engine.poll(self._number) == 0:  # interrupted: the operation goes on
                raise
            self._error = error
        self._ended = True
        self._arrays = None
        _engine.release(self._number)

    def __del__(self) -> None:
        if _abandoned:
            _release_abandoned()
        if self._ended or self._number == 0:
            return
        if _engine.poll(self._number) == 0:
            _abandoned[self._number] = self._arrays
        else:
            _engine.release(self._number)


def poll(handle: Handle[T]) -> bool:
    """Whether the operation is complete."""
    return _checked(handle).poll()


def wait(handle: Handle[T], timeout: float | None = None) -> T:
    """Waits for the operation and gives its result; see Handle.wait."""
    return _checked(handle).wait(timeout)


def _checked(handle: Handle[T]) -> Handle[T]:
    if not isinstance(handle, Handle):
        raise TypeError(f"a Handle is needed, not {type(handle).__name__}")
    return handle


def _release_abandoned() -> None:
    for number in list(_abandoned):
        if _engine.poll(number) != 0 and _abandoned.pop(number, None) is not None:
            _engine.release(number)
