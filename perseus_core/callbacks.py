"""The thread on which Python callbacks of complete operations run.

The engine's threads never wait for the GIL: they queue what is complete, and this one thread,
started with the first callback, takes the GIL and calls.
"""

from __future__ import annotations

import os
import threading

from perseus_core import _engine

_lock = threading.Lock()
_thread: threading.Thread | None = None


def _forget() -> None:
    """In a forked child: the thread is its parent's."""
    global _lock, _thread
    _lock = threading.Lock()
    _thread = None


os.register_at_fork(after_in_child=_forget)


def start() -> None:
    """Starts the thread unless it runs. Any thread may call."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = threading.Thread(
                target=_engine.dispatch_callbacks, name="perseus-callbacks", daemon=True
            )
            _thread.start()


def stop() -> None:
    """Runs what is queued and ends the thread. Not to be called from a callback."""
    global _thread
    with _lock:
        thread, _thread = _thread, None
    if thread is not None:
        _engine.close_callbacks()
        thread.join()
