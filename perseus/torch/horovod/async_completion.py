"""CUDA streams that wait for results in place of the host: PERSEUS_ASYNC_COMPLETION.

By default the host waits, as Horovod's does: a result is then there for every stream, and an error
is raised before anybody can use what is void. With the setting, the current stream is made to wait,
and the host goes on. Then

- memory of the operation goes back to PyTorch's allocator in the order of that stream, before the
  GPU is done: memory of another stream's is marked as in use by it (Tensor.record_stream);
- what goes wrong later is raised once, by the next call that looks back. The engine is broken by
  then, so that no operation that comes after succeeds.

Results whose memory the engine allocates (of gathers, alltoall and reduce-scatter) wait for the
host, as their sizes or addresses do. Any thread.
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

# As init has found it; None: nobody has asked.
_is_on: bool | None = None
# Operations that streams wait for, by age: what becomes of them is not known yet.
_pending: deque[int] = deque()
_lock = threading.RLock()


def is_on() -> bool:
    """Whether streams are to wait in place of the host."""
    global _is_on
    if _is_on is None:
        _is_on = any(row.name == ASYNC_COMPLETION and row.value == "1" for row in settings())
    return _is_on


def wait(handle: int, output: Any) -> bool:
    """Has the current stream wait for what the operation puts into `output`: tensors or their
    storages. False, and nothing is done, where only the host can.

    Give the handle to release_later() in the end. Raises what raise_late_errors does, or what the
    operation failed with.
    """
    raise_late_errors()
    device = _device_of(output)
    if device is None or device.type != "cuda":
        return False
    stream = torch.cuda.current_stream(device)
    engine.wait_on_stream(handle, stream.cuda_stream)
    record_stream(stream, engine.kept(handle))
    engine.let_go(handle)
    return True


def release_later(handle: int) -> None:
    """Releases an operation that a stream waits for, when it is known what has become of it."""
    _pending.append(handle)


def raise_late_errors() -> None:
    """Raises what operations that streams wait for have failed with since; once."""
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
    """Waits until all that streams wait for is complete; raises what any of it failed with."""
    for handle in list(_pending):
        with contextlib.suppress(Exception):  # which raise_late_errors raises
            engine.wait(handle)
    raise_late_errors()


def warn_of_late_errors() -> None:
    """Warns of what has failed and can be raised no more."""
    try:
        raise_late_errors()
    except Exception as error:
        warnings.warn(f"results that are in use may be void: {error}", stacklevel=2)


def reset() -> None:
    """Forgets what was under way in an engine that has shut down, and looks at the setting anew."""
    global _is_on
    warn_of_late_errors()
    _is_on = None


# Last of all: what is registered by init, which ends the engine, runs before.
atexit.register(warn_of_late_errors)


def _device_of(output: Any) -> torch.device | None:
    while isinstance(output, (list, tuple)) and output:
        output = output[0]
    return getattr(output, "device", None)
