"""The things that a run of a campaign may leave behind: processes, shared memory, and sockets."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

#: The variable by which the processes of a run are known.
MARK = "CHAOS_RUN"


def things() -> set[str]:
    """Returns names in /dev/shm, and Perseus's sockets except those of other jobs."""
    left = set(os.listdir("/dev/shm"))
    sockets = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[7].startswith("@perseus"):
            sockets[f"socket:[{fields[6]}]"] = fields[7]
    others = _of_other_jobs(sockets)
    return left | {name for inode, name in sockets.items() if inode not in others}


def _of_other_jobs(sockets: Collection[str]) -> set[str]:
    """Returns those that are held by a process outside this campaign."""
    others: set[str] = set()
    for pid in _processes() if sockets else ():
        with suppress(OSError):
            if f"{MARK}={os.getpid()}-".encode() not in _environment_of(pid):
                others |= {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    return others.intersection(sockets)


def found(mark: str, before: set[str], seconds: float = 5) -> list[str]:
    """Returns what a run has left that was not there before it: processes, and things.

    It waits so many seconds for them to go, and ends processes that stay.
    """
    deadline = time.monotonic() + seconds
    while processes := _processes_marked(mark):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    while stay := things() - before:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"LEFT: {left}" for left in (processes, stay) if left]


def _processes_marked(mark: str) -> list[int]:
    marked = []
    for pid in _processes():
        with suppress(OSError):
            if f"{MARK}={mark}\0".encode() in _environment_of(pid):
                marked.append(pid)
    return marked


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
