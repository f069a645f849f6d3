"""Hosts and their slots, and the assignment of ranks to them."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

# A name, an IPv4 address, or an IPv6 address in brackets; then the number of slots.
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%\w]+\]|[^\s:,=\[\]]+)(?::(?P<slots>\d+))?")
_HOSTFILE_LINE = re.compile(
    r"(?P<host>\S+)(?:\s+slots\s*=\s*(?P<slots>\d+))?(?:\s+max_slots\s*=\s*\d+)?"
)

#: What to do about a host that an elastic job finds twice: it counts the slots of each by number.
NAME_ONCE = "an elastic job needs each host once, with all its slots"


@dataclass(frozen=True)
class Host:
    name: str
    slots: int


@dataclass(frozen=True)
class Slot:
    """The place of one rank. `cross` counts the ranks with this local rank over all hosts."""

    rank: int
    size: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def parse_hosts(text: str, *, distinct: bool = False) -> list[Host]:
    """Reads "host:slots,host:slots"; a host without slots has one. Raises ValueError.

    Args:
      distinct: refuses a host that is named twice, whose slots are added up otherwise.
    """
    hosts = [parse_host(item) for item in text.split(",") if item.strip()]
    return _merge(hosts, f"'{text}'", distinct)


def read_hostfile(
    path: str | Path, default_slots: int = 1, *, distinct: bool = False
) -> list[Host]:
    """Reads a file of lines `host slots=N` or `host:N`; # begins a comment. Raises ValueError.

    Args:
      distinct: as of `parse_hosts`.
    """
    return _merge(hostfile_entries(path, default_slots), str(path), distinct)


def hostfile_entries(path: str | Path, default_slots: int) -> list[Host]:
    """Returns what each line of such a file names; [] if none does. Raises ValueError."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ValueError(f"cannot read hostfile {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError(f"hostfile {path} is not a text file; its lines must be 'host slots=N'")
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _HOSTFILE_LINE.fullmatch(line)
        if not match:
            raise ValueError(f"{path}, line {number}: '{line}' is not of the form 'host slots=N'")
        host = parse_host(match["host"], default_slots)
        slots = int(match["slots"]) if match["slots"] else host.slots
        hosts.append(Host(host.name, slots))
    return hosts


def assign(hosts: Sequence[Host], size: int) -> list[Slot]:
    """Assigns `size` ranks to the hosts in order. Raises ValueError if they do not fit."""
    if size < 1:
        raise ValueError(f"a job needs at least one rank, not {size}")
    available = sum(host.slots for host in hosts)
    if size > available:
        places = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ValueError(
            f"{size} ranks do not fit on {available} slot{'s' * (available != 1)} ({places}); "
            "give the hosts more slots or start fewer ranks"
        )
    every_host = (host.name for host in hosts for _ in range(host.slots))
    return slots_on(list(islice(every_host, size)))


def hosts_of(slots: Sequence[Slot]) -> list[Host]:
    """Returns the hosts of these slots in order, each with as many slots as it has there."""
    return [Host(name, count) for name, count in Counter(slot.host for slot in slots).items()]


def slots_on(hosts: Sequence[str], numbers: Sequence[int] = ()) -> list[Slot]:
    """Returns the place of each rank, given the host of each.

    Args:
      numbers: order the ranks of a host among themselves, by rank; by default, their ranks do.
    """
    local_sizes = Counter(hosts)
    on_host: Counter[str] = Counter()
    local_ranks = [0] * len(hosts)
    for rank in sorted(range(len(hosts)), key=lambda rank: numbers[rank] if numbers else rank):
        local_ranks[rank] = on_host[hosts[rank]]
        on_host[hosts[rank]] += 1
    cross_sizes = Counter(local_ranks)
    seen: Counter[int] = Counter()
    slots = []
    for rank, (host, local_rank) in enumerate(zip(hosts, local_ranks, strict=True)):
        slots.append(
            Slot(
                rank=rank,
                size=len(hosts),
                host=host,
                local_rank=local_rank,
                local_size=local_sizes[host],
                cross_rank=seen[local_rank],
                cross_size=cross_sizes[local_rank],
            )
        )
        seen[local_rank] += 1
    return slots


def is_local(name: str) -> bool:
    """Returns whether the host is this machine, by one of its names or addresses."""
    if name in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def has_slots(item: str) -> bool:
    """Returns whether an item of `parse_host` names a number of slots."""
    match = _HOST.fullmatch(item.strip())
    return match is not None and match["slots"] is not None


def parse_host(item: str, default_slots: int = 1) -> Host:
    """Reads "host:slots", or "host" with the default number of slots. Raises ValueError."""
    match = _HOST.fullmatch(item.strip())
    if not match:
        raise ValueError(f"'{item.strip()}' is not of the form host:slots")
    if match["name"].startswith("-"):
        # ssh would take it for an option, such as ProxyCommand.
        raise ValueError(f"'{match['name']}' is no name of a host; it must not begin with '-'")
    if match["slots"] is None:
        return Host(match["name"].strip("[]"), default_slots)
    slots = int(match["slots"])
    if slots < 1:
        raise ValueError(f"'{item.strip()}': a host needs at least one slot")
    return Host(match["name"].strip("[]"), slots)


def check_distinct(hosts: Sequence[Host], source: str) -> None:
    """Raises ValueError, which begins with `source`, if a host is named twice."""
    for name, times in Counter(host.name for host in hosts).items():
        if times > 1:
            raise ValueError(f"{source} names '{name}' {times} times; {NAME_ONCE}")


def _merge(hosts: Sequence[Host], source: str, distinct: bool) -> list[Host]:
    """Joins the entries of each host; the slots of a host that is named twice are added up."""
    if not hosts:
        raise ValueError(f"{source} names no host")
    if distinct:
        check_distinct(hosts, source)
    slots: Counter[str] = Counter()
    for host in hosts:
        slots[host.name] += host.slots
    return [Host(name, count) for name, count in slots.items()]
