"""Threads for the callbacks of futures, which may wait for other operations."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

from perseus.torch.threads_at_exit import wait_at_exit

__all__ = ["CallbackThreads"]

_Inbox: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"


class CallbackThreads:
    """Runs every function at once, on an idle thread or a new one. Any thread may use it.

    It does not use concurrent.futures, because the interpreter waits for those threads before it
    exits, while they may wait for operations that the engine only ends later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Inbox] = []
        self._ending = False
        atexit.register(self._end)

    def run(self, function: Callable[[], None]) -> None:
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = queue.SimpleQueue()
            thread = threading.Thread(
                target=self._serve, args=(inbox,), name="perseus-future", daemon=True
            )
            wait_at_exit(thread)
            try:
                thread.start()
            except RuntimeError:
                # No thread can be started, for instance because the interpreter is exiting. Run
                # the function here: that works unless it waits for something.
                function()
                return
        inbox.put(function)

    def end_idle(self) -> None:
        """Ends the idle threads."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _end(self) -> None:
        with self._lock:
            self._ending = True
        self.end_idle()

    def _serve(self, inbox: _Inbox) -> None:
        while True:
            function = inbox.get()
            if function is None:
                return
            function()
            del function  # frees what it holds before the next one arrives
            with self._lock:
                if self._ending:
                    return
                self._idle.append(inbox)
