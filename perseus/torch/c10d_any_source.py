"""Messages from whichever rank sends first.

The two ranks of a message agree on it, so the receiver must know the sender before it takes part.
The engine tells when another rank has a message ready that nobody has asked for yet.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work

from perseus.torch.c10d_operations import callback_threads
from perseus_core import OperationKind, callbacks, engine, names
from perseus_core.errors import from_status

__all__ = ["AnySource", "AnySourceWork", "message_prefix"]


def message_prefix(source: int, tag: int) -> str:
    """Returns the prefix of the unnamed operations that are a rank's messages with a tag."""
    return f"c10d.message.{source}.{tag}"


class AnySource:
    """Finds out who has sent a message to this rank of a group. Any thread may use it."""

    def __init__(self, rank: int, size: int, set_with: Callable[[int], int]) -> None:
        """`set_with` gives the process set of this rank and another."""
        self._others = [other for other in range(size) if other != rank]
        self._set_with = set_with
        self._condition = threading.Condition()
        # By source and tag: the name of a message that was asked after, and the answer.
        self._answers: dict[tuple[int, int], tuple[str, bool | Exception]] = {}

    def receive(self, tag: int, limit: timedelta, start: Callable[[int], Work]) -> tuple[int, Work]:
        """Returns a rank that has sent a message with the tag, and start(rank), which receives it.

        Raises RuntimeError if there is none within the limit, and what other operations would.
        """
        callbacks.start()
        deadline = time.monotonic() + limit.total_seconds()
        with self._condition:  # until it is being received, or another thread might find it, too
            while True:
                for source in self._others:
                    if self._has_sent(source, tag):
                        return source, start(source)
                if not self._condition.wait(deadline - time.monotonic()):
                    raise RuntimeError(
                        f"no rank has sent a message with tag {tag} within the timeout of {limit}"
                    )

    def _has_sent(self, source: int, tag: int) -> bool:
        """Returns whether a message is there; otherwise has the condition notified of one."""
        process_set = self._set_with(source)
        prefix = message_prefix(source, tag)
        coming = names.coming_unnamed(prefix, process_set)
        name, answer = self._answers.get((source, tag), ("", False))
        if name != coming:  # a call that named its source may have received the other one
            self._answers[source, tag] = coming, False
            told = functools.partial(self._told, (source, tag), coming)
            engine.await_offer(process_set, OperationKind.BROADCAST, coming, told)
            return False
        if isinstance(answer, Exception):
            del self._answers[source, tag]
            raise answer
        return answer

    def _told(
        self, which: tuple[int, int], name: str, handle: int, status: int, message: str
    ) -> None:
        engine.release(handle)
        with self._condition:
            if self._answers.get(which, ("", False))[0] == name:
                answer = True if status == 0 else from_status(status, message)
                self._answers[which] = name, answer
                self._condition.notify_all()


class AnySourceWork(Work):
    """A message from whichever rank sends first. Any thread may use it."""

    def __init__(
        self,
        find: Callable[[timedelta], tuple[int, Work]],
        result: list[torch.Tensor],
        timeout: timedelta,
    ) -> None:
        """`find` waits for a message and begins to receive it."""
        super().__init__()
        self._result = result
        self._timeout = timeout
        self._found = threading.Event()
        self._source = -1
        self._work: Work | None = None
        self._error: Exception | None = None
        callback_threads.run(functools.partial(self._find, find))

    def _find(self, find: Callable[[timedelta], tuple[int, Work]]) -> None:
        try:
            self._source, self._work = find(self._timeout)
        except Exception as error:
            self._error = error
        self._found.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout if timeout is not None and timeout > timedelta() else self._timeout
        began = time.monotonic()
        # The search has the same limit, and says more.
        grace = 1.0 if limit == self._timeout else 0.0
        if not self._found.wait(limit.total_seconds() + grace):
            raise RuntimeError(f"no rank has sent a message within the timeout of {limit}")
        if self._work is None:
            assert self._error is not None
            raise self._error
        spent = timedelta(seconds=time.monotonic() - began)
        return bool(self._work.wait(max(limit - spent, timedelta(milliseconds=1))))

    def is_completed(self) -> bool:
        if not self._found.is_set():
            return False
        return self._work is None or bool(self._work.is_completed())

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        if self._work is None:
            return self._error
        found: Exception | None = self._work.exception()
        return found

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        """Returns the rank in the group that has sent the message."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

        def settle() -> None:
            try:
                self.wait()
                future.set_result(self._result)
            except Exception as error:
                future.set_exception(error)

        callback_threads.run(settle)
        return future
