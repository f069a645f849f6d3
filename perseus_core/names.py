"""Names under which the ranks match their operations.

Ranks match operations by set, kind and name. Unnamed ones are numbered in the order of the calls,
for each set and prefix apart, so ranks need to agree only on the order of unnamed calls of one kind
on one set. The numbers go round, because the engine remembers every name it has seen and agrees
on a known one by a single bit.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable

from perseus_core import _engine
from perseus_core.constants import OperationKind
from perseus_core.errors import HorovodInternalError

#: Unnamed operations of one prefix and set that may be in flight at once without waiting.
ROUND = 2048

_lock = threading.Lock()
_counters: dict[tuple[str, int], itertools.count[int]] = {}
_last_handle: dict[tuple[str, int], int] = {}


def restart() -> None:
    """Forgets the counts. Called by init, for all ranks must begin with the same."""
    with _lock:
        _counters.clear()
        _last_handle.clear()


def submit(
    kind: OperationKind,
    prefix: str,
    name: str | None,
    process_set: int,
    send: Callable[[int], int],
) -> int:
    """Registers ``<prefix>.<name>``, gives the id to `send`, and returns the handle from it."""
    if name is not None:
        return send(_engine.register(process_set, kind, f"{prefix}.{name}"))
    with _lock:
        counter = _counters.setdefault((prefix, process_set), itertools.count())
        text = f"{prefix}.noname.{next(counter) % ROUND}"
        before = _last_handle.pop((text, process_set), None)
    if before is not None and _engine.poll(before) == 0:
        # More than ROUND unnamed operations are in flight. Its own caller will see a failure.
        with contextlib.suppress(HorovodInternalError):
            _engine.wait(before)
    handle = send(_engine.register(process_set, kind, text))
    with _lock:
        _last_handle[text, process_set] = handle
    return handle
