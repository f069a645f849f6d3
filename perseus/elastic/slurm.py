"""The nodes of a Slurm job, without those that have failed since it began."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Mapping
from itertools import product

from perseus.elastic.discovery import DiscoveryError
from perseus.elastic.program_output import output_of
from perseus.run.hosts import Host, check_distinct

__all__ = ["SlurmSource", "expand_node_list", "expand_tasks"]

#: Seconds after which sinfo is killed. Slurm waits 10 s for a message, and tries again.
SINFO_SECONDS = 30.0

# States in which a node is lost, or soon will be. A node that is draining runs its jobs to their
# end, one that does not answer ("*") may do so again, and all are unknown to a controller that has
# just begun.
_LOST = {"down", "drained", "error", "fail", "failing", "power_down", "powered_down"}
_LOST |= {"powering_down"}

_MOST_NODES = 1 << 16
_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_TASKS = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")


class SlurmSource:
    """The allocation of this job, in Slurm's order, without nodes that sinfo says are lost.

    Where there is no sinfo, it is the whole allocation.

    Args:
      slots: those of each node; by default, as many as Slurm gives tasks to it.
    """

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        slots: int | None = None,
        timeout: float = SINFO_SECONDS,
    ) -> None:
        self._list = environment.get("SLURM_JOB_NODELIST", "")
        self._tasks = environment.get("SLURM_TASKS_PER_NODE", "")
        self._slots = slots
        self._timeout = timeout
        self._cancelled = threading.Event()

    def find(self) -> list[Host]:
        lost = self._lost_nodes()
        return [host for host in self._allocation() if host.name not in lost]

    def cancel(self) -> None:
        self._cancelled.set()

    def _allocation(self) -> list[Host]:
        try:
            nodes = expand_node_list(self._list)
            if self._slots is not None or not self._tasks:
                slots = [self._slots or 1] * len(nodes)
            else:
                slots = expand_tasks(self._tasks)
        except ValueError as error:
            raise DiscoveryError(str(error)) from None
        if len(slots) != len(nodes):
            raise DiscoveryError(
                f"SLURM_TASKS_PER_NODE is '{self._tasks}', for {len(slots)} nodes, and "
                f"SLURM_JOB_NODELIST is '{self._list}', {len(nodes)} nodes; they must be as many"
            )
        hosts = [Host(name, count) for name, count in zip(nodes, slots, strict=True) if count]
        try:
            check_distinct(hosts, f"SLURM_JOB_NODELIST, '{self._list}',")
        except ValueError as error:
            raise DiscoveryError(str(error)) from None
        return hosts

    def _lost_nodes(self) -> set[str]:
        program = shutil.which("sinfo")
        if program is None:
            return set()
        command = [program, "--noheader", "--Node", f"--nodes={self._list}", "--format=%N %T"]
        lost = set()
        for line in output_of(command, "sinfo", self._timeout, self._cancelled).splitlines():
            name, _, state = line.strip().partition(" ")
            # Signs after the word tell more, such as "down*" of a node that does not answer.
            if re.match(r"[a-z_]*", state.strip().lower())[0] in _LOST:  # type: ignore[index]
                lost.add(name)
        return lost


def expand_node_list(text: str) -> list[str]:
    """Returns the names in a list such as node[01-04,7],gpu3. Raises ValueError."""
    names: list[str] = []
    for item in _split(text):
        parts = [
            [plain] if plain else _expand_ranges(ranges, text)
            for ranges, plain in _PART.findall(item)
        ]
        count = 1
        for part in parts:
            count *= len(part)
        if len(names) + count > _MOST_NODES:
            raise _malformed(text)
        names += map("".join, product(*parts))
    return names


def _split(text: str) -> list[str]:
    items = _ITEM.findall(text)
    if not items or ",".join(items) != text:
        raise _malformed(text)
    return items


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise _malformed(text)
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < _MOST_NODES:
            raise _malformed(text)
        numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
    return numbers


def _malformed(text: str) -> ValueError:
    return ValueError(f"'{text}' is not a node list such as node[01-04,7],gpu3")


def expand_tasks(text: str) -> list[int]:
    """Returns the numbers of tasks in a list such as 2(x3),1, one for a node. Raises ValueError."""
    tasks: list[int] = []
    for item in text.split(","):
        match = _TASKS.fullmatch(item)
        times = int(match[2] or 1) if match else 0
        if match is None or times + len(tasks) > _MOST_NODES:
            raise ValueError(f"'{text}' is not a list of tasks such as 2(x3),1")
        tasks += [int(match[1])] * times
    return tasks
