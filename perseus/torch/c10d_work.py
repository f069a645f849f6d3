"""Operations in the form that torch.distributed expects: a Work to wait for, and a future."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import Work

from perseus.torch.c10d_memory import Span
from perseus.torch.c10d_operations import Finish, Operations, callback_threads, complete
from perseus.torch.horovod.tensors import described, described_one, place_of
from perseus_core import DataType, OperationKind, callbacks, engine, refusals, submission

__all__ = [
    "Operations",
    "PerseusWork",
    "SubmitArguments",
    "callback_threads",
    "run",
    "start",
    "submit_arguments",
    "submit_bytes",
    "wait_for_all",
]

_BYTE = int(DataType.UINT8)


class PerseusWork(Work):
    """One operation of a group, or several that were started together. Any thread may use it."""

    def __init__(self, what: str, operations: Operations, timeout: timedelta) -> None:
        """`what` names the work in errors; `timeout` is the default limit of wait."""
        super().__init__()
        self._what = what
        self._operations = operations
        self._timeout = timeout

    def __del__(self) -> None:
        if not self._operations.ended:
            self._operations.end_without_wait()

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout if timeout is not None and timeout > timedelta() else self._timeout
        if not self._operations.wait(limit.total_seconds()):
            raise _is_late(self._what, limit)
        if self._operations.error is not None:
            raise self._operations.error
        return True

    def is_completed(self) -> bool:
        return self._operations.poll()

    def is_success(self) -> bool:
        return self._operations.poll() and self._operations.error is None

    def exception(self) -> Exception | None:
        self._operations.poll()
        return self._operations.error

    def result(self) -> list[torch.Tensor]:
        return self._operations.result

    def source_rank(self) -> int:
        raise RuntimeError(f"{self._what} is no message, so it has no source")

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._operations.future()


def _is_late(what: str, limit: timedelta) -> RuntimeError:
    return RuntimeError(
        f"{what} is not complete after the timeout of {limit}; the stall report "
        "(PERSEUS_STALL_CHECK_TIME_SECONDS) shows which ranks it waits for"
    )


class SubmitArguments(NamedTuple):
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
    if len(pairs) == 1:
        tensors, options["place"] = described_one(*pairs[0])
    else:
        tensors, options["place"] = described(
            [source for source, _ in pairs], [target for _, target in pairs]
        )
    return SubmitArguments(tensors, options)


def submit_bytes(source: Span, target: int = 0, **options: Any) -> SubmitArguments:
    """Returns the arguments of engine.submit for bytes.

    Args:
      target: where the result goes, or 0 if the engine allocates it.
      options: other arguments of engine.submit.
    """
    operand = source.address, target, (source.nbytes,), _BYTE
    if not source.owner.is_cpu:
        options["place"] = place_of([source.owner])
    return SubmitArguments([operand], options)


def start(
    kind: OperationKind,
    prefix: str,
    process_set: int,
    submissions: Sequence[SubmitArguments],
    finish: Finish,
    result: list[torch.Tensor],
    timeout: timedelta,
    unfinished: set[Operations] | None = None,
) -> PerseusWork:
    """Starts unnamed operations of a prefix as one work.

    Args:
      finish: stores the results. It is called once, with the engine's handles, when all operations
        have succeeded, and owns the memory that they work on until then.
      result: the tensors that the future gives.
      timeout: the default limit of the work's wait.
      unfinished: has the operations until they end.
    """
    callbacks.start()
    operations = Operations(finish, result)
    work = PerseusWork(prefix, operations, timeout)
    for index, call in enumerate(submissions):
        callback = engine.LateCallback()
        left = len(submissions) - index - 1
        try:
            # The operations own the memory.
            handle = _submit(kind, prefix, process_set, operations, call, left, callback)
        except Exception as error:
            operations.error = error
            raise
        operations.add(handle, callback)
    if unfinished is not None:
        operations.list_in(unfinished)
    return work


def wait_for_all(unfinished: Iterable[Operations], what: str, timeout: timedelta) -> None:
    """Waits until all have ended, and raises the first error among theirs."""
    deadline = time.monotonic() + timeout.total_seconds()
    for operations in unfinished:
        if not operations.wait(max(0.0, deadline - time.monotonic())):
            raise _is_late(what, timeout)
        if operations.error is not None:
            raise operations.error


def run(
    kind: OperationKind,
    prefix: str,
    process_set: int,
    submissions: Sequence[SubmitArguments],
    finish: Finish,
    result: list[torch.Tensor],
    timeout: timedelta,
) -> None:
    """Does what start does, and waits; much of what a work needs is not needed then."""
    handles: list[int] = []
    try:
        for index, call in enumerate(submissions):
            left = len(submissions) - index - 1
            handles.append(_submit(kind, prefix, process_set, finish, call, left))
    except Exception:
        for handle in handles:
            engine.release(handle)
        raise
    if not complete(handles, finish, result, timeout.total_seconds()):
        raise _is_late(prefix, timeout)


def _submit(
    kind: OperationKind,
    prefix: str,
    process_set: int,
    keep: object,
    call: SubmitArguments,
    left: int,
    callback: engine.LateCallback | None = None,
) -> int:
    """Submits one of several operations; if that fails, the `left` ones after it fail, too."""
    try:
        return submission.submit(
            kind,
            prefix,
            None,
            process_set,
            keep,
            engine.submit,
            call.tensors,
            **call.options,
            callback=callback,
        )
    except Exception as error:
        refusals.refuse_unnamed(kind, prefix, left, process_set, error)
        raise
