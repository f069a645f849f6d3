"""An operation under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from perseus_core import _engine

__all__ = ["Handle", "poll", "wait"]

T = TypeVar("T")

# Operations whose Handle was dropped too early: the engine is still at work on them.
_abandoned: set[int] = set()


class Handle(Generic[T]):
    """An operation under way. Any thread may call its methods.

    The operation's arrays live until its end, even where the Handle is dropped before.
    """

    __slots__ = (
        *("_ended", "_error", "_finish", "_lock", "_number", "_value"),
        *("__dict__", "__weakref__"),  # as users may have come to expect
    )

    def __init__(self, finish: Callable[[int], T]) -> None:
        """`finish` makes the result from the number of the complete operation."""
        self._finish = finish
        # An interrupt that comes as wait() takes it leaves it to this thread, which may wait again.
        self._lock = threading.RLock()
        self._ended = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._number = 0  # the last, as __del__ expects

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
        """Takes it from a thread that waits, too. Gives what is left of the time."""
        if timeout is None:
            self._lock.acquire()
            return None
        began = time.monotonic()
        if not self._lock.acquire(timeout=timeout):
            if not self.poll():
                raise TimeoutError(f"the operation is not complete after {timeout} s")
            self._lock.acquire()  # which the other thread is about to leave
        return max(0.0, timeout - (time.monotonic() - began))

    def _end(self, timeout: float | None) -> None:
        try:
            if not _engine.wait(self._number, -1 if timeout is None else int(timeout * 1000)):
                raise TimeoutError(f"the operation is not complete after {timeout} s")
        except Exception as raised:
            # It may be what a signal's handler has raised: the operation goes on, or is well.
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
        if getattr(self, "_number", 0) == 0 or self._ended:  # __init__ may have been interrupted
            return
        if _engine.poll(self._number) == 0:
            _abandoned.add(self._number)
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
        if _engine.poll(number) != 0:
            _abandoned.discard(number)
            _engine.release(number)
