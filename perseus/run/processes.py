"""The processes of this host as /proc shows them. An agent imports this; it needs only the standard
library."""

from __future__ import annotations

import contextlib
import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def about(process: int) -> list[bytes]:
    """Returns the fields of /proc/PID/stat from the state on, or [] if there is no such process."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            # The name of the command is in parentheses, and may hold spaces and parentheses.
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []


def began(process: int) -> int | None:
    """Returns when a process has begun, in ticks since the start of the system; it tells apart
    processes that have the same number one after the other. None if it has ended."""
    fields = about(process)
    return None if not fields or fields[0] in (b"Z", b"X") else int(fields[19])


def children() -> dict[int, list[int]]:
    """Returns the process ids of the children of each process that has any."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := about(int(name))):
            found.setdefault(int(fields[1]), []).append(int(name))
    return found


def descendants(ancestor: int) -> list[int]:
    """Returns the process ids of all descendants of a process."""
    of = children()
    found = []
    level = [ancestor]
    while level:
        level = [child for parent in level for child in of.get(parent, [])]
        found += level
    return found


def adopt_orphans() -> None:
    """Has this process become the parent of what its descendants leave behind."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: int) -> None:
    """Has the kernel send this process the signal when its parent ends, also after an exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def kill(process: int, number: int) -> None:
    """Sends a signal to a process, if it is still there, we may, and this system has the signal.

    A program that changes its user, such as sudo, cannot be signalled by us.
    """
    with contextlib.suppress(OSError):
        os.kill(process, number)
