"""Daemon threads that run PyTorch's code: the interpreter waits for them a while before it exits.

PyTorch aborts the process when a call of its C++ code returns to such a thread while the
interpreter shuts down. Threads that are still busy after that while most likely stay so until the
process has ended.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref

__all__ = ["wait_at_exit"]

_SECONDS = 2.0
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def wait_at_exit(thread: threading.Thread) -> None:
    """Call before the thread starts. Exit handlers that are registered later run before the wait,
    and may tell the thread to end."""
    _threads.add(thread)


def _wait() -> None:
    end = time.monotonic() + _SECONDS
    for thread in list(_threads):
        if thread.is_alive():
            thread.join(max(0.0, end - time.monotonic()))


atexit.register(_wait)
