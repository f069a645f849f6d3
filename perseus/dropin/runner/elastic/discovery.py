"""Horovod's types for finding hosts, over those of perseus.elastic.

Programs derive from HostDiscovery, or give hosts to HostManager themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping

from perseus.elastic.discovery import Cancellable, HostSource
from perseus.elastic.host_table import HostTable
from perseus.elastic.sources import ScriptSource
from perseus.run.hosts import Host

__all__ = [
    "DiscoveredHosts",
    "FixedHosts",
    "HostDiscovery",
    "HostDiscoveryScript",
    "HostManager",
]


class HostDiscovery:
    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Returns the number of slots of each host, in the order in which hosts are to be used."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """Hosts that a script prints, as perseus.elastic.sources.ScriptSource reads them.

    `slots` is the number for hosts that are printed without one.
    """

    def __init__(self, discovery_script: str, slots: int | None):
        self._source = ScriptSource(discovery_script, slots)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        hosts = self._source.parse(self._execute_discovery_script())
        return {host.name: host.slots for host in hosts}

    def cancel(self) -> None:
        """Ends the script if it runs, in another thread. It is not run again."""
        self._source.cancel()

    def _execute_discovery_script(self) -> str:
        return self._source.output()


class FixedHosts(HostDiscovery):
    """Hosts that change when the program says so."""

    def __init__(self, host_slots: dict[str, int]):
        self._host_slots = host_slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return self._host_slots

    def set(self, host_slots: dict[str, int]) -> None:
        self._host_slots = host_slots


def source_of(discovery: HostDiscovery) -> HostSource:
    """Returns the hosts of a HostDiscovery, or what is like one, as a source of perseus.elastic."""
    return _Source(discovery)


class _Source:
    def __init__(self, discovery: HostDiscovery) -> None:
        self._discovery = discovery

    def find(self) -> list[Host]:
        return _hosts(self._discovery.find_available_hosts_and_slots())

    def cancel(self) -> None:
        if isinstance(self._discovery, Cancellable):
            self._discovery.cancel()


def _hosts(slots: Mapping[str, int]) -> list[Host]:
    return [Host(name, count) for name, count in slots.items()]


class DiscoveredHosts:
    """The hosts of one moment. It does not change.

    `host_assignment_order` has those to use, without the blacklisted ones.
    """

    def __init__(self, host_slots: Mapping[str, int], host_assignment_order: Iterable[str]):
        self._host_slots = dict(host_slots)
        self._order = list(host_assignment_order)

    @property
    def host_slots(self) -> dict[str, int]:
        return dict(self._host_slots)

    @property
    def available_hosts(self) -> set[str]:
        return set(self._order)

    @property
    def host_assignment_order(self) -> list[str]:
        return list(self._order)

    def get_slots(self, host: str) -> int:
        return self._host_slots.get(host, 0)

    def count_available_slots(self) -> int:
        return sum(map(self.get_slots, self._order))

    def __str__(self) -> str:
        return f"slots: {self._host_slots} order: {self._order}"


class HostManager:
    """The hosts that a HostDiscovery finds, without those that have failed. Any thread may use it.

    `cooldown_range` is the least and the most seconds for which a failed host is left out; without
    it, that is for ever.
    """

    def __init__(self, discovery: HostDiscovery, cooldown_range: tuple[int, int] | None = None):
        self._discovery = discovery
        # A driver of these hosts takes both; it calls us while it holds the lock.
        self.lock = threading.RLock()
        self.table = HostTable(cooldown_range)
        self._events: dict[str, threading.Event] = {}

    def update_available_hosts(self) -> int:
        """Looks for hosts; returns how they have changed, as HostUpdateResult has it."""
        found = _hosts(self._discovery.find_available_hosts_and_slots())
        with self.lock:
            return int(self.table.update(found))

    @property
    def current_hosts(self) -> DiscoveredHosts:
        with self.lock:
            slots = {host.name: host.slots for host in self.table.known}
            return DiscoveredHosts(slots, [host.name for host in self.table.usable])

    def blacklist(self, host: str) -> None:
        """Leaves out a host from now on, and sets its event."""
        with self.lock:
            if not self.table.is_blacklisted(host):
                logging.info("host %s has failed, and is left out", host)
            self.table.blacklist(host)
            event = self._events.get(host)
        if event is not None:
            event.set()

    def is_blacklisted(self, host: str) -> bool:
        with self.lock:
            return self.table.is_blacklisted(host)

    def get_host_event(self, host: str) -> threading.Event:
        """Returns the event that is set when the host is blacklisted next."""
        with self.lock:
            event = self._events.get(host)
            if event is None or event.is_set():
                event = self._events[host] = threading.Event()
            return event

    @staticmethod
    def order_available_hosts(
        available_hosts: Collection[str], prev_host_assignment_order: Iterable[str]
    ) -> list[str]:
        """Returns the hosts, those first that were there before, in the order of then."""
        kept = [host for host in prev_host_assignment_order if host in available_hosts]
        return kept + [host for host in available_hosts if host not in kept]
