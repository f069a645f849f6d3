"""PERSEUS_ASYNC_COMPLETION, with which CUDA streams wait for results in place of the host.

By default the host waits, as in Horovod: every stream can then use a result, and an error is raised
before invalid data can be used. With the setting, the current stream waits, and the host goes on.
Then

- memory of the operation goes back to PyTorch's allocator in the order of that stream, before the
  GPU has finished; memory of another stream is marked as in use by it (Tensor.record_stream);
- a later error is raised once, by the next call that checks. The engine is broken by then, so that
  every later operation fails.

The host still waits for results whose memory the engine allocates (of gathers, alltoall and
reduce-scatter), because it needs their sizes or addresses. Any thread may call these functions.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import warnings
from collections import deque
from typing import Any

import torch

from perseus.torch.horovod.tensors import record_stream
from perseus_core import engine, settings

ASYNC_COMPLETION = "PERSEUS_ASYNC_COMPLETION"

# The setting as init has found it; None while nobody has asked.
_is_on: bool | None = None
# Operations that streams wait for, oldest first, whose outcome is not known yet.
_pending: deque[int] = deque()
_lock = threading.RLock()


def is_on() -> bool:
    """Returns whether streams wait in place of the host."""
    global _is_on
    if _is_on is None:
        _is_on = any(row.name == ASYNC_COMPLETION and row.value == "1" for row in settings())
    return _is_on


def wait(handle: int, output: Any) -> bool:
    """Makes the current stream wait for the results of an operation, and returns True.

    Returns False, and does nothing, if only the host can wait. Otherwise pass the handle to
    release_later() in the end.

    Args:
      output: the tensors that the results are in, or their storages.

    Raises what raise_late_errors raises, or what the operation failed with.
    """
    raise_late_errors()
    device = _device_of(output)
    if device is None or device.type != "cuda":
        return False
    stream = torch.cuda.current_stream(device)
    engine.wait_on_stream(handle, stream.cuda_stream)
    record_stream(stream, engine.kept(handle))
    engine.drop_kept(handle)
    return True


def release_later(handle: int) -> None:
    """Releases an operation that a stream waits for, once its outcome is known."""
    _pending.append(handle)


def raise_late_errors() -> None:
    """Raises the first error of operations that streams wait for, once."""
    if not _pending:
        return
    error = None
    with _lock:
        while _pending and engine.poll(_pending[0]) != 0:
            handle = _pending.popleft()
            error = error or engine.error(handle)
            engine.release(handle)
    if error is not None:
        raise error


def wait_for_all() -> None:
    """Waits until all operations that streams wait for are complete; raises the first error."""
    for handle in list(_pending):
        with contextlib.suppress(Exception):  # raise_late_errors raises it
            engine.wait(handle)
    raise_late_errors()


def warn_of_late_errors() -> None:
    """Warns of errors that cannot be raised any more."""
    try:
        raise_late_errors()
    except Exception as error:
        warnings.warn(f"results that are in use may be invalid: {error}", stacklevel=2)


def reset() -> None:
    """Resets the state for a new engine: warns of errors, and has the setting read again."""
    global _is_on
    warn_of_late_errors()
    _is_on = None


# Runs last: functions that init registers, which shut down the engine, run before.
atexit.register(warn_of_late_errors)


def _device_of(output: Any) -> torch.device | None:
    while isinstance(output, (list, tuple)) and output:
        output = output[0]
    return getattr(output, "device", None)
