"""Threads for callbacks of futures, which may wait for other operations."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["CallbackThreads"]

_Inbox: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class CallbackThreads:
    """Runs every function at once, on an idle thread or else a new one. Any thread.

    concurrent.futures is not used because its threads hold up the end of the interpreter, before
    which the engine does not end what they may wait for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Inbox] = []

    def run(self, function: Callable[[], None]) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(inbox,), name="perseus-future", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                # There are no more threads, as at the end of the interpreter. A function that
                # waits for nothing can do without.
                function()
                return
        inbox.put(function)

    def end_idle(self) -> None:
        """Ends the threads that have nothing to do."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, inbox: _Inbox) -> None:
        while True:
            function = inbox.get()
            if function is None:
                return
            function()
            del function  # and what it holds, before the next comes
            with self._lock:
                self._idle.append(inbox)
