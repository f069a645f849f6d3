"""Hosts, their slots, and the assignment of ranks to them, with Horovod's types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perseus.run import hosts as ours

__all__ = [
    "INVALID_SLOT_INFO",
    "HostInfo",
    "SlotInfo",
    "get_host_assignments",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
    "slot_info",
]


@dataclass
class HostInfo:
    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Parses "host:slots"; raises ValueError for anything else."""
        (host,) = parse_hosts(host_string)
        return host


@dataclass
class SlotInfo:
    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        numbers = (
            *(self.rank, self.size),
            *(self.local_rank, self.local_size),
            *(self.cross_rank, self.cross_size),
        )
        return ",".join(map(str, numbers))


#: The place of a process that an elastic job has none for.
INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parses "host:slots,host:slots"."""
    return [HostInfo(host.name, host.slots) for host in ours.parse_hosts(hosts_string)]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Returns the names in "host:slots,host:slots", and the slots of each."""
    parsed = parse_hosts(hosts)
    return [host.hostname for host in parsed], {host.hostname: host.slots for host in parsed}


def parse_host_files(filename: str) -> str:
    """Reads a file of lines `host slots=N`; returns "host:slots,host:slots"."""
    return ",".join(f"{host.name}:{host.slots}" for host in ours.read_hostfile(filename))


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Fills the hosts in order with as many ranks as fit, `max_num_proc` at most.

    ValueError if those are fewer than `min_num_proc`.
    """
    available = sum(host.slots for host in hosts)
    size = available if max_num_proc is None else min(available, max_num_proc)
    slots = ours.assign(
        [ours.Host(host.hostname, host.slots) for host in hosts], max(size, min_num_proc)
    )
    return [slot_info(slot) for slot in slots]


def slot_info(slot: ours.Slot) -> SlotInfo:
    return SlotInfo(
        slot.host,
        slot.rank,
        slot.local_rank,
        slot.cross_rank,
        slot.size,
        slot.local_size,
        slot.cross_size,
    )
