"""A store of PyTorch whose answers are awaited until a deadline.

Some of TCPStore's calls have no time-out: if something on the network holds the answer back, or
another program has the store's port and is silent, they never return.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from typing import Any, TypeAlias, TypeVar

import torch.distributed as dist

from perseus.torch.threads_at_exit import wait_at_exit
from perseus_core.errors import TimedOutError

__all__ = ["BoundedStore"]

T = TypeVar("T")
_Call: TypeAlias = tuple[Callable[[dist.Store], Any], "Future[Any]"]


class BoundedStore:
    """A thread speaks with the store. One thread at a time may call the methods.

    Args:
      deadline: by when answers must come, in seconds of time.monotonic.
      silent: what the TimedOutError says after it.
    """

    def __init__(self, store: dist.Store, deadline: float, silent: str) -> None:
        self._store = store
        self._deadline = deadline
        self._silent = silent
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        thread = threading.Thread(target=self._speak, daemon=True)
        wait_at_exit(thread)
        thread.start()

    def close(self) -> None:
        """Ends the thread, unless the store does not answer it."""
        self._calls.put(None)

    def set(self, key: str, value: str) -> None:
        self._ask(lambda store: store.set(key, value))

    def get(self, key: str) -> bytes:
        value: bytes = self._ask(lambda store: store.get(key))
        return value

    def check(self, keys: list[str]) -> bool:
        are_there: bool = self._ask(lambda store: store.check(keys))
        return are_there

    def _ask(self, act: Callable[[dist.Store], T]) -> T:
        answer: Future[T] = Future()
        self._calls.put((act, answer))
        # An answer that comes at once is taken after the deadline, too.
        left = max(0.1, self._deadline - time.monotonic())
        try:
            return answer.result(left)
        except NoAnswerError:
            raise TimedOutError(self._silent) from None

    def _speak(self) -> None:
        while (call := self._calls.get()) is not None:
            act, answer = call
            try:
                answer.set_result(act(self._store))
            except Exception as error:
                answer.set_exception(error)
