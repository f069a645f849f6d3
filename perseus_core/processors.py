"""The processors that a process may use, and the share of them that each rank of a host gets.

It needs only the standard library, since perseusrun's agent loads it by itself. Linux only.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable(process: int = 0) -> int:
    """Returns how many processors a process, by default this one, may keep busy.

    These are the processors that it may run on (sched_getaffinity), or fewer if its control group
    has a quota of processor time, as in a container.
    """
    allowed = len(os.sched_getaffinity(process))
    limit = quota()
    return allowed if limit is None else max(1, min(allowed, math.ceil(limit)))


def share(ranks: int, *, is_shared: bool) -> int:
    """Returns how many threads a rank should compute with, at least 1.

    Args:
      ranks: ranks on this host.
      is_shared: whether all of them may run on the processors that this process may run on. If
        not, a launcher such as mpirun may have bound each rank to processors of its own.
    """
    if is_shared:
        return max(1, usable() // ranks)
    return max(1, min(usable(), _of_host() // ranks))


def _of_host() -> int:
    """Returns the processors of this host or container, which those of process 1 stand for."""
    try:
        return max(usable(), usable(1))
    except OSError:  # another user's process cannot always be asked
        return max(usable(), os.cpu_count() or 1)


def quota() -> float | None:
    """Returns the processors that the control groups allow at once; None without a limit."""
    limits = [limit for folder in _groups() if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _groups() -> list[Path]:
    """Returns this process's control group and those that it is in, or none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # A line without controllers is of version 2, which has one tree for all controllers.
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = _CGROUPS / controllers / path.lstrip("/")
        found += [folder, *folder.parents]
    return [folder for folder in found if folder.is_relative_to(_CGROUPS)]


def _limit(folder: Path) -> float | None:
    for quota_file, period_file in (
        ("cpu.max", None),
        ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
    ):
        try:
            words = (folder / quota_file).read_text().split()
            if period_file:
                words += (folder / period_file).read_text().split()
            quota, period = int(words[0]), int(words[1])
        except (OSError, ValueError, IndexError):  # no such file, or "max"
            continue
        if quota > 0 and period > 0:
            return quota / period
    return None
