"""Handles of operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from perseus_core import _engine

__all__ = ["Handle", "poll", "wait"]

T = TypeVar("T")

# Operations whose Handle was dropped while the engine was still working on them.
_abandoned: set[int] = set()


class Handle(Generic[T]):
    """An operation in flight. Any thread may call its methods.

    The arrays of the operation live until it is complete, even if the Handle is dropped before.
    """

    __slots__ = (
        *("_ended", "_error", "_finish", "_lock", "_number", "_value"),
        *("__dict__", "__weakref__"),  # users may rely on them
    )

    def __init__(self, finish: Callable[[int], T]) -> None:
        """`finish` returns the result of the complete operation, given its number in the engine."""
        self._finish = finish
        # Reentrant: a thread that is interrupted as wait() takes it still owns it, and may wait
        # again.
        self._lock = threading.RLock()
        self._ended = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._number = 0  # set last: __del__ expects the attributes above

    def submitted(self, number: int) -> None:
        """Sets the engine's number of the operation."""
        self._number = number

    def poll(self) -> bool:
        """Returns whether the operation is complete, so that wait() would not block.

        Raises NotInitializedError in a child process that was forked after the submission.
        """
        if self._ended:
            return True
        state = _engine.poll(self._number)
        if state < 0 and not self._ended:
            _engine.wait(self._number)  # raises: the engine has no such operation
        return state != 0

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the operation and returns its result, the same one on every call.

        Args:
          timeout: seconds; None waits without bound.

        Raises HorovodInternalError if the operation failed, on every rank that takes part, and
        TimeoutError if it is not complete in time; the operation then goes on. In a child process
        that was forked after the submission it raises at once.
        """
        if not self._ended:
            if not self._lock.acquire(blocking=False):
                # In a forked child the thread that has the lock does not exist: poll raises.
                self.poll()
                timeout = self._take_lock(timeout)
            try:
                if not self._ended:
                    self._end(timeout)
            finally:
                self._lock.release()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _take_lock(self, timeout: float | None) -> float | None:
        """Waits for the lock, which another waiting thread has; returns the time that is left."""
        if timeout is None:
            self._lock.acquire()
            return None
        began = time.monotonic()
        if not self._lock.acquire(timeout=timeout):
            if not self.poll():
                raise TimeoutError(f"the operation is not complete after {timeout} s")
            self._lock.acquire()  # the other thread is about to release it
        return max(0.0, timeout - (time.monotonic() - began))

    def _end(self, timeout: float | None) -> None:
        try:
            if not _engine.wait(self._number, -1 if timeout is None else int(timeout * 1000)):
                raise TimeoutError(f"the operation is not complete after {timeout} s")
        except Exception as raised:
            # A signal's handler may have raised it: then the operation has not failed.
            error = _engine.error(self._number) if _engine.poll(self._number) != 0 else None
            if error is None:
                raise
            self._error = raised if type(raised) is type(error) else error
        else:
            self._value = self._finish(self._number)
        self._ended = True
        _engine.release(self._number)

    def __del__(self) -> None:
        if _abandoned:
            _release_abandoned()
        if getattr(self, "_number", 0) == 0 or self._ended:  # __init__ was interrupted
            return
        if _engine.poll(self._number) == 0:
            _abandoned.add(self._number)
        else:
            _engine.release(self._number)


def poll(handle: Handle[T]) -> bool:
    """Returns whether the operation is complete."""
    return _checked(handle).poll()


def wait(handle: Handle[T], timeout: float | None = None) -> T:
    """Waits for the operation and returns its result; see Handle.wait."""
    return _checked(handle).wait(timeout)


def _checked(handle: Handle[T]) -> Handle[T]:
    if not isinstance(handle, Handle):
        raise TypeError(f"a Handle is needed, not {type(handle).__name__}")
    return handle


def _release_abandoned() -> None:
    for number in list(_abandoned):
        if _engine.poll(number) != 0:
            _abandoned.discard(number)
            _engine.release(number)
