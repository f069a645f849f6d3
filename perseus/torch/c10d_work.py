"""Operations as torch.distributed knows them: a Work that is waited for, and a future."""

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

#: Where futures that were asked for complete, and their callbacks run.
callback_threads = CallbackThreads()

#: Of each CUDA device; used by Perseus's thread for callbacks alone.
_copy_streams: dict[torch.device, torch.cuda.Stream] = {}


class PerseusWork(Work):
    """One operation of a group, or several that were begun together. Any thread.

    Callbacks of its future may wait for other operations, so they never run on the thread that
    completes those. Where nobody has asked for the future there is none, and no other thread.
    """

    def __init__(
        self,
        what: str,
        operations: int,
        finish: Callable[[list[int]], None],
        result: list[torch.Tensor],
        timeout: timedelta,
    ) -> None:
        """`what` names it in errors. `finish` puts results where they belong: it runs once, with
        the engine's handles, when all operations have succeeded. Until then it keeps alive what
        they work on."""
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
        """The callback of each operation; on Perseus's thread for them."""
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
                "(PERSEUS_STALL_CHECK_TIME_SECONDS) says which ranks it waits for"
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
                    # The first of its callbacks: others may take long, or wait for this work.
                    # After wait, DDP takes the future's value without waiting for that as well.
                    done = self._done
                    self._future.add_done_callback(lambda _: done.set())
            return self._future


@dataclass(frozen=True)
class SubmitArguments:
    """What engine.submit takes."""

    tensors: list[engine.Operand]
    options: dict[str, Any]


def submit_arguments(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor | None]], **options: Any
) -> SubmitArguments:
    """A call on tensors and where their results go, if that is known, wherever they are.

    ValueError for what cannot be sent, or is not all on one device.
    """
    tensors, place = described([source for source, _ in pairs], [target for _, target in pairs])
    return SubmitArguments(tensors, {**options, "place": place})


@contextlib.contextmanager
def _finishing(result: Sequence[torch.Tensor]) -> Iterator[None]:
    """Around what brings results into tensors: they are there, for every stream, when it ends.

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
    """Begins unnamed operations of a prefix, to be waited for as one; see PerseusWork."""
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
                None,  # the work has it, and the engine the callback
                engine.submit,
                call.tensors,
                **call.options,
                callback=ended,
            )
        except Exception as error:
            refusals.refuse_unnamed(kind, prefix, len(submissions) - index - 1, process_set, error)
            raise
    return work
