"""The thread that runs Python callbacks of complete operations.

The engine's threads never wait for the GIL: they put complete operations in a queue, and this one
thread takes the GIL and runs the callbacks. The first operation with a callback starts it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from perseus_core import _engine
from perseus_core.handle import Handle

_lock = threading.Lock()
_thread: threading.Thread | None = None


def _forget() -> None:
    """Runs in a forked child, where the parent's thread does not exist."""
    global _lock, _thread
    _lock = threading.Lock()
    _thread = None


os.register_at_fork(after_in_child=_forget)


def start() -> None:
    """Starts the thread unless it is running. Any thread may call it."""
    global _thread
    if _thread is not None:
        return
    with _lock:
        if _thread is None:
            _thread = threading.Thread(
                target=_engine.dispatch_callbacks, name="perseus-callbacks", daemon=True
            )
            _thread.start()


def stop() -> None:
    """Runs the callbacks in the queue and ends the thread. A callback must not call it."""
    global _thread
    with _lock:
        thread, _thread = _thread, None
    if thread is not None:
        _engine.close_callbacks()
        thread.join()


def completion(
    handle: Handle[Any], callback: Callable[[Handle[Any]], object]
) -> Callable[[int, int, str], None]:
    """Returns the function that the engine calls at the end of the handle's operation.

    Starts the thread. Raises TypeError if the callback cannot be called.
    """
    if not callable(callback):
        raise TypeError(f"callback is {type(callback).__name__}, which is not callable")
    start()

    def complete(number: int, status: int, message: str) -> None:
        handle.submitted(number)
        callback(handle)

    return complete
