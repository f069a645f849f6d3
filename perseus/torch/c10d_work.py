"""Operations in the form that torch.distributed expects: a Work to wait for, and a future."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from perseus.torch.c10d_threads import CallbackThreads
from perseus.torch.horovod.tensors import described
from perseus_core import OperationKind, callbacks, engine, refusals, submission
from perseus_core.errors import from_status

__all__ = ["PerseusWork", "SubmitArguments", "callback_threads", "start", "submit_arguments"]

#: The threads on which futures complete and their callbacks run.
callback_threads = CallbackThreads()

#: A stream for each CUDA device; only the thread of perseus_core.callbacks uses them.
_copy_streams: dict[torch.device, torch.cuda.Stream] = {}


class PerseusWork(Work):
    """One operation of a group, or several that were started together. Any thread may use it.

    Callbacks of its future may wait for other operations, so they never run on the thread that
    completes operations. The future, and a thread for it, exist only if the future is asked for.
    """

    def __init__(
        self,
        what: str,
        operations: int,
        finish: Callable[[list[int]], None],
        result: list[torch.Tensor],
        timeout: timedelta,
    ) -> None:
        """Makes a work for `operations` operations that are about to be submitted.

        Args:
          what: names the work in errors.
          finish: stores the results. It is called once, with the engine's handles, when all
            operations have succeeded, and owns the memory that they work on until then.
          result: the tensors that the future gives.
          timeout: the default limit of wait.
        """
        super().__init__()
        self._what = what
        self._handles = [0] * operations
        self._left = operations
        self._finish: Callable[[list[int]], None] | None = finish
        self._result = result
        self._timeout = timeout
        self._lock = threading.Lock()
        self._ended = False
        self._done = threading.Event()
        self._error: Exception | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        if operations == 0:
            self._complete()

    def ended(self, index: int, handle: int, status: int, message: str) -> None:
        """Called when operation `index` is complete, on the thread of perseus_core.callbacks."""
        with self._lock:
            self._handles[index] = handle
            if status != 0 and self._error is None:
                self._error = from_status(status, message)
            self._left -= 1
            if self._left > 0:
                return
        self._complete()

    def _complete(self) -> None:
        finish, self._finish = self._finish, None
        try:
            if self._error is None and finish is not None:
                with _finishing(self._result):
                    finish(self._handles)
        except Exception as error:
            self._error = error
        for handle in self._handles:
            engine.release(handle)
        with self._lock:
            self._ended = True
            future = self._future
        if future is None:
            self._done.set()
        else:
            callback_threads.run(functools.partial(self._settle, future))

    def _settle(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self._error is None:
            future.set_result(self._result)
        else:
            future.set_exception(self._error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout if timeout is not None and timeout > timedelta() else self._timeout
        if not self._done.wait(limit.total_seconds()):
            raise RuntimeError(
                f"{self._what} is not complete after {limit}; the stall report "
                "(PERSEUS_STALL_CHECK_TIME_SECONDS) shows which ranks it waits for"
            )
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._ended

    def is_success(self) -> bool:
        return self._ended and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._result

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        with self._lock:
            if self._future is None:
                devices = list({tensor.device for tensor in self._result if tensor.is_cuda})
                self._future = torch.futures.Future(devices=devices)
                if self._ended:
                    self._settle(self._future)
                else:
                    # This must be the first callback, as others may take long or wait for this
                    # work. After wait(), DDP reads the value of the future without waiting for it.
                    done = self._done
                    self._future.add_done_callback(lambda _: done.set())
            return self._future


@dataclass(frozen=True)
class SubmitArguments:
    """Arguments of engine.submit."""

    tensors: list[engine.Operand]
    options: dict[str, Any]


def submit_arguments(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]], **options: Any
) -> SubmitArguments:
    """Returns the arguments of engine.submit for tensors.

    Args:
      pairs: each tensor and the one for its result, or None if the engine allocates the result.
      options: other arguments of engine.submit.

    Raises ValueError for tensors that cannot be sent, or are not all on one device.
    """
    tensors, place = described([source for source, _ in pairs], [target for _, target in pairs])
    return SubmitArguments(tensors, {**options, "place": place})


@contextlib.contextmanager
def _finishing(result: Sequence[torch.Tensor]) -> Iterator[None]:
    """Wraps copies of results into tensors; every stream can use the tensors when it ends.

    The copies must not wait for the program's own work, which may be in the default stream.
    """
    device = next((tensor.device for tensor in result if tensor.is_cuda), None)
    if device is None:
        yield
        return
    if device not in _copy_streams:
        _copy_streams[device] = torch.cuda.Stream(device)
    with torch.cuda.stream(_copy_streams[device]):
        yield
    _copy_streams[device].synchronize()


def start(
    kind: OperationKind,
    prefix: str,
    process_set: int,
    submissions: Sequence[SubmitArguments],
    finish: Callable[[list[int]], None],
    result: list[torch.Tensor],
    timeout: timedelta,
) -> PerseusWork:
    """Starts unnamed operations of a prefix as one work; see PerseusWork."""
    callbacks.start()
    work = PerseusWork(prefix, len(submissions), finish, result, timeout)
    for index, call in enumerate(submissions):
        ended = functools.partial(work.ended, index)
        try:
            submission.submit(
                kind,
                prefix,
                None,
                process_set,
                None,  # the callback holds the work, which owns the memory
                engine.submit,
                call.tensors,
                **call.options,
                callback=ended,
            )
        except Exception as error:
            refusals.refuse_unnamed(kind, prefix, len(submissions) - index - 1, process_set, error)
            raise
    return work
