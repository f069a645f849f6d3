"""Names under which the ranks match their operations.

Ranks match operations by process set, kind and name. Unnamed operations are numbered in the order
of the calls, separately for each process set and prefix, so ranks need to agree only on the order
of the unnamed calls of one kind on one set. The numbers wrap around at ROUND, because the engine
remembers every name it has seen and agrees on a known one by a single bit.

Any thread may call these functions.
"""

from __future__ import annotations

import contextlib
import threading

from perseus_core import _engine
from perseus_core.arguments import plain_text
from perseus_core.errors import HorovodInternalError

__all__ = [
    "ROUND",
    "all_have_joined",
    "full_name",
    "last_handles",
    "lock",
    "next_object",
    "next_unnamed",
    "restart",
    "restart_set",
    "set_round",
    "times_restarted",
]

#: Unnamed operations of one prefix and set that may be in flight at once without waiting.
ROUND = 2048

#: Guards `last_handles`.
lock = threading.Lock()
#: The handle of the latest operation that was submitted under an unnamed call's name, by that name
#: and the process set. `submission.submit` writes it, `next_unnamed` waits for it.
last_handles: dict[tuple[str, int], int] = {}
# How many unnamed calls there have been, by prefix and process set.
_counters: dict[tuple[str, int], int] = {}
# How many objects without a name have been made, by kind and process set.
_objects: dict[tuple[str, int], int] = {}
_times_restarted = 0
# Other numbers than ROUND, by prefix.
_rounds: dict[str, int] = {}


def set_round(prefix: str, count: int) -> None:
    """Has unnamed operations of a prefix use so many names in turn, the same on all ranks.

    With fewer names, ranks sooner know all of them, but fewer operations may be in flight at once
    without waiting.
    """
    _rounds[prefix] = count


def restart() -> None:
    """Forgets all counts. init calls it, because all ranks must begin with the same ones."""
    global _times_restarted
    with lock:
        _counters.clear()
        _objects.clear()
        last_handles.clear()
        _times_restarted += 1


def times_restarted() -> int:
    """Returns how often init has started an engine in this process."""
    return _times_restarted


def all_have_joined() -> None:
    """Counts from 0 again: a rank that joined early made fewer calls than the others.

    The operations still in flight are kept, so that no name is used again before its operation
    ends.
    """
    with lock:
        _counters.clear()


def restart_set(process_set: int) -> None:
    """Forgets the counts of a new set: a call made before the set existed counted on no rank."""
    with lock:
        for counts in (_counters, _objects):
            for key in [key for key in counts if key[1] == process_set]:
                del counts[key]
        for key in [key for key in last_handles if key[1] == process_set]:
            del last_handles[key]


def next_object(kind: str, process_set: int) -> int:
    """Returns how many objects of a kind were made before on a set since init, and counts one more.

    Ranks match objects without names by the order in which they are made. Objects that are gone
    count as well, since Python deletes them at a different time on each rank.
    """
    key = kind, process_set
    with lock:
        count = _objects.get(key, 0)
        _objects[key] = count + 1
    return count


def full_name(prefix: str, name: str | None, process_set: int) -> str:
    """Returns `<prefix>.<name>`, or the name of the next unnamed call if `name` is None.

    Raises TypeError or ValueError for a name that is not valid text.
    """
    if name is not None:
        return f"{prefix}.{plain_text('name', name)}"
    return next_unnamed(prefix, process_set)


def next_unnamed(prefix: str, process_set: int) -> str:
    """Returns the name of the next unnamed call, and counts the call.

    Waits if the operation that had this name last, ROUND calls ago or as set_round says, is still
    in flight.
    """
    key = prefix, process_set
    with lock:
        count = _counters.get(key, 0)
        _counters[key] = count + 1
        text = f"{prefix}.noname.{count % _rounds.get(prefix, ROUND)}"
        before = last_handles.pop((text, process_set), None)
    if before is not None and _engine.poll(before) == 0:
        # More unnamed operations are in flight than there are names. A failure is raised to the
        # caller of that operation, not here.
        with contextlib.suppress(HorovodInternalError):
            _engine.wait(before)
    return text
