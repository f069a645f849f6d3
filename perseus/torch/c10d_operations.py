"""The engine's operations behind a work of torch.distributed, and how they end.

Whoever waits for them waits in the engine, and so does the engine's work by itself: a small
operation takes less time than the switches between threads that a callback needs. Operations that
nobody waits for are ended by callbacks, but only if somebody may notice. A call that waits for its
operations itself needs none of that: see `complete`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch

from perseus.torch.c10d_errors import as_invalid_argument
from perseus.torch.c10d_threads import CallbackThreads
from perseus_core import engine

__all__ = ["Finish", "Operations", "callback_threads", "complete"]

#: Stores the results of operations, by the engine's handles, once all of them have succeeded.
Finish: TypeAlias = Callable[[list[int]], None]

#: The threads on which futures complete and their callbacks run.
callback_threads = CallbackThreads()


class _Streams(threading.local):
    """A thread's streams for copies, one for each CUDA device."""

    def __init__(self) -> None:
        self.by_device: dict[torch.device, torch.cuda.Stream] = {}


_copy_streams = _Streams()


class Operations:
    """Operations that end together. Any thread may use them once all have been added.

    Callbacks of their future may wait for other operations, so they never run on the thread that
    completes operations. The future, and a thread for it, exist only if the future is asked for.
    """

    def __init__(self, finish: Finish, result: list[torch.Tensor]) -> None:
        """See c10d_work.start."""
        self._finish: Finish | None = finish
        self.result = result
        self._handles: list[int] = []
        self._callbacks: list[engine.LateCallback] = []
        self._lock = threading.Lock()  # of the thread that waits for the operations, or ends them
        self._count_lock = threading.Lock()
        self._left = -1  # operations whose callbacks are still to come; -1: none was asked for
        self._future_lock = threading.Lock()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._future_is_set: threading.Event | None = None  # exists with the future
        self._listed: set[Operations] | None = None
        self.ended = False
        self.error: Exception | None = None

    def add(self, handle: int, callback: engine.LateCallback) -> None:
        self._handles.append(handle)
        self._callbacks.append(callback)

    def list_in(self, unfinished: set[Operations]) -> None:
        """Keeps them in the set until they end."""
        self._listed = unfinished
        unfinished.add(self)

    def wait(self, seconds: float) -> bool:
        """Returns whether the operations have ended, and the future is set, within the time."""
        deadline = time.monotonic() + seconds
        if not self.ended:
            if not self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
                return False
            try:
                if not self.ended and not self._wait_for_all(deadline):
                    return False
            finally:
                self._lock.release()
        # After wait(), DDP reads the value of the future without waiting for it.
        is_set = self._future_is_set
        return is_set is None or is_set.wait(deadline - time.monotonic())

    def poll(self) -> bool:
        """Returns whether the operations have ended."""
        if not self.ended and all(engine.poll(handle) != 0 for handle in self._handles):
            self._end_complete_ones()
        return self.ended

    def end_without_wait(self) -> None:
        """Has the operations ended by callbacks, as nobody may wait for them."""
        with self._count_lock:
            if self._left >= 0 or self.ended:
                return
            self._left = len(self._callbacks)
        for callback in self._callbacks:
            if not callback.set(self._one_is_complete):
                self._one_is_complete()

    def future(self) -> torch.futures.Future[list[torch.Tensor]]:
        self.poll()
        with self._future_lock:
            if self._future is not None:
                return self._future
            devices = list({tensor.device for tensor in self.result if tensor.is_cuda})
            future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)
            is_set = threading.Event()
            # This must be the first callback, as others may take long or wait for this work.
            future.add_done_callback(lambda _: is_set.set())
            self._future, self._future_is_set = future, is_set
            if self.ended:
                self._settle(future)
                return future
        self.end_without_wait()
        return future

    def _one_is_complete(self, *_: object) -> None:
        with self._count_lock:
            self._left -= 1
            if self._left > 0:
                return
        self._end_complete_ones()

    def _end_complete_ones(self) -> None:
        with self._lock:
            if not self.ended:
                self._wait_for_all(time.monotonic())

    def _wait_for_all(self, deadline: float) -> bool:
        has_ended, error = _wait_for_each(self._handles, deadline)
        self.error = self.error or error  # one of them may not have started
        if has_ended:
            self._end()
        return has_ended

    def _end(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            self.error = _finished(self._handles, self.error, finish, self.result)
        for handle in self._handles:
            engine.release(handle)
        with self._future_lock:
            self.ended = True
            future = self._future
        if self._listed is not None:
            self._listed.discard(self)
        if future is not None:
            callback_threads.run(functools.partial(self._settle, future))

    def _settle(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self.error is None:
            future.set_result(self.result)
        else:
            future.set_exception(self.error)


def complete(
    handles: Sequence[int], finish: Finish, result: Sequence[torch.Tensor], seconds: float
) -> bool:
    """Waits for operations and stores their results; releases the handles in any case.

    Returns False if they have not ended within the time; they go on. Raises what they failed with.
    """
    try:
        has_ended, error = _wait_for_each(handles, time.monotonic() + seconds)
        if has_ended:
            error = _finished(handles, error, finish, result)
    finally:
        for handle in handles:
            engine.release(handle)
    if has_ended and error is not None:
        raise error
    return has_ended


def _wait_for_each(handles: Sequence[int], deadline: float) -> tuple[bool, Exception | None]:
    """Returns whether all operations have ended by the deadline, and the first error."""
    first = None
    for handle in handles:
        left = max(0.0, deadline - time.monotonic())
        try:
            if not engine.wait(handle, int(left * 1000)):
                return False, first
        except Exception:
            # A signal's handler may have raised it: then the operation has not failed.
            error = engine.error(handle) if engine.poll(handle) != 0 else None
            if error is None:
                raise
            first = first or error
    return True, first


def _finished(
    handles: Sequence[int],
    error: Exception | None,
    finish: Finish,
    result: Sequence[torch.Tensor],
) -> Exception | None:
    """Stores the results of operations that have ended, unless one failed; returns the error."""
    if error is not None:
        return error
    try:
        for tensor in result:
            if tensor.is_cuda:
                with _finishing(tensor.device):
                    finish(list(handles))
                return None
        finish(list(handles))
    except Exception as failure:
        return as_invalid_argument(failure)
    return None


@contextlib.contextmanager
def _finishing(device: torch.device) -> Iterator[None]:
    """Wraps copies of results into tensors; every stream can use the tensors when it ends.

    The copies must not wait for the program's own work, which may be in the default stream.
    """
    streams = _copy_streams.by_device
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    with torch.cuda.stream(streams[device]):
        yield
    streams[device].synchronize()
