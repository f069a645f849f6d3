"""Horovod's driver of an elastic job whose workers the program runs itself, over the real driver.

perseus.elastic.driver decides; here are Horovod's names for what it decides, and the discovery of
hosts. Ranks of perseusrun and horovod.run have another owner, perseus.elastic.launcher.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perseus.dropin.runner.common.util.hosts import (
    INVALID_SLOT_INFO,
    HostInfo,
    SlotInfo,
    get_host_assignments,
)
from perseus.dropin.runner.common.util.timeout import Timeout
from perseus.dropin.runner.elastic.discovery import DiscoveredHosts, HostManager, source_of
from perseus.dropin.runner.elastic.registration import WorkerStateRegistry
from perseus.dropin.runner.elastic.worker import WorkerNotificationClient
from perseus.dropin.runner.elastic.worker_threads import CreateWorker, WorkerThreads
from perseus.elastic.discovery import Discovery, DiscoveryError
from perseus.elastic.host_table import Change
from perseus.elastic.options import TIMEOUT_VARIABLE, ElasticOptions, elastic_timeout
from perseus.run.hosts import Host

__all__ = ["DISCOVER_HOSTS_FREQUENCY_SECS", "ELASTIC_TIMEOUT_SECS", "ElasticDriver", "Results"]

# Programs and tests set these; they are read when they are needed.
#: Seconds between two looks for hosts.
DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
#: Seconds to wait for enough slots, if neither an argument nor the environment says.
ELASTIC_TIMEOUT_SECS = 600


def seconds_to_wait(given: int | None) -> int:
    """Returns the seconds to wait for enough slots."""
    if given or os.environ.get(TIMEOUT_VARIABLE):
        return elastic_timeout(given)
    return ELASTIC_TIMEOUT_SECS


@dataclass(frozen=True)
class Results:
    error_message: str | None
    worker_results: dict[str, tuple[int, float]]  # "host[slot]": its exit code, and when


class ElasticDriver:
    """Any thread may call it. It looks for hosts from the beginning, and starts workers on `start`.

    Args:
      rendezvous: a RendezvousServer, or what is like one; it is told of each world, and stopped.
      discovery: a HostDiscovery, or what is like one.
      timeout: seconds to wait for enough slots.
      reset_limit: how often the ranks may change.
      cooldown_range: the least and the most seconds for which a failed host is left out.
    """

    def __init__(
        self,
        rendezvous: Any,
        discovery: Any,
        min_num_proc: int | None = None,
        max_num_proc: int | None = None,
        timeout: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[int, int] | None = None,
        verbose: int = 0,
        *,
        min_np: int | None = None,
        max_np: int | None = None,
    ):
        self._rendezvous = rendezvous
        self._verbose = verbose
        self._timeout = seconds_to_wait(timeout)
        self._options = ElasticOptions(
            least=_one_of("min_num_proc", min_num_proc, min_np),
            most=max_num_proc if max_np is None else max_np,
            timeout=self._timeout,
            reset_limit=reset_limit,
            cooldown_range=cooldown_range,
            blacklist_by="host",
            join="at_once",
        )
        self._host_manager = HostManager(discovery, cooldown_range)
        self.worker_threads = WorkerThreads(
            self._options, self._host_manager, self._tell_world, self._notify
        )
        self._worker_registry = WorkerStateRegistry(self, self._host_manager, reset_limit)
        self._clients: dict[tuple[str, int], WorkerNotificationClient] = {}
        self._error_message: str | None = None
        self._discovery = Discovery(
            source_of(discovery),
            self._hosts_found,
            interval=lambda: DISCOVER_HOSTS_FREQUENCY_SECS,
            log=logging.warning,
        )
        threading.Thread(target=self._discover_hosts, name="discovery", daemon=True).start()

    # ---- The job.

    def start(
        self,
        num_proc: int | None = None,
        create_worker_fn: CreateWorker | None = None,
        *,
        np: int | None = None,
    ) -> None:
        """Waits for the slots, and starts a worker on each one.

        `create_worker_fn(slot_info, events)` runs a worker to its end, in a thread of its own, and
        returns its exit code and when it ended. It ends the worker when one of the events is set.
        """
        if create_worker_fn is None:
            raise TypeError("create_worker_fn is missing")
        self.wait_for_available_slots(_one_of("num_proc", num_proc, np))
        self.worker_threads.start_job(create_worker_fn)

    def resume(self) -> None:
        """Starts workers on slots that have none; it happens by itself, too."""
        self.worker_threads.look_again()

    def stop(self, error_message: str | None = None) -> None:
        """Ends the job, and the server of the rendezvous."""
        self._error_message = self._error_message or error_message
        self.worker_threads.stop(None)
        self._discovery.stop()
        self._rendezvous.stop()

    def finished(self) -> bool:
        """Returns whether the job is over, though workers may still be ending."""
        return self.worker_threads.shutdown.is_set()

    def get_results(self) -> Results:
        """Waits until all workers have ended; returns the outcomes of those of the last world."""
        outcomes = self.worker_threads.outcomes()
        return Results(
            self._error_message or self.worker_threads.failure,
            {f"{host}[{slot}]": outcome for (host, slot), outcome in outcomes.items()},
        )

    # ---- Workers.

    def record_ready(self, host: str, slot: int) -> None:
        """Waits until this worker is in a new world, or the job has no place for it."""
        self.worker_threads.meet((host, slot))

    def register_worker_server(
        self, host: str, slot: int, addresses: Mapping[str, Any], secret_key: bytes
    ) -> None:
        """Notes where a worker wants to hear that the hosts have changed."""
        client = WorkerNotificationClient(addresses, secret_key, self._verbose)
        self._clients[host, slot] = client

    def get_worker_client(self, slot_info: SlotInfo) -> WorkerNotificationClient | None:
        return self._clients.get((slot_info.hostname, slot_info.local_rank))

    # ---- The world.

    @property
    def host_assignments(self) -> dict[str, list[SlotInfo]]:
        """The places in the last world by host, or those planned for the first; {} before."""
        return _by_host(self.worker_threads.assigned())

    def world_size(self) -> int:
        return len(self.worker_threads.assigned())

    def local_size(self, host: str) -> int:
        """Raises KeyError for a host that has no place in the world."""
        return len(self.host_assignments[host])

    def get_slot_info(self, host: str, slot: int) -> SlotInfo:
        """Returns a worker's place in the world: with rank -1 if it has none."""
        is_out = self._host_manager.is_blacklisted(host)
        if is_out or self.worker_threads.is_told_to_end((host, slot)):
            return INVALID_SLOT_INFO
        slots = self.worker_threads.assigned()
        found = (each for each in slots if (each.hostname, each.local_rank) == (host, slot))
        return next(found, INVALID_SLOT_INFO)

    def has_rank_assignment(self, host: str, slot: int) -> bool:
        return self.get_slot_info(host, slot).rank >= 0

    def get_coordinator_info(self) -> SlotInfo | None:
        """Returns the place of rank 0."""
        return next(iter(self.worker_threads.assigned()), None)

    # ---- Hosts.

    def wait_for_available_slots(
        self, min_num_proc: int | None = None, min_hosts: int = 1, *, min_np: int | None = None
    ) -> DiscoveredHosts:
        """Waits until there are enough; returns the hosts.

        Raises RuntimeError if the job is over, TimeoutException after the time-out.
        """
        size = _one_of("min_num_proc", min_num_proc, min_np)
        limit = Timeout(
            self._timeout,
            f"{{activity}} have not been found: the job needs {size} slots on {min_hosts} hosts",
        )
        changed = self.worker_threads.changed
        with changed:
            while True:
                hosts = self._host_manager.current_hosts
                is_enough = len(hosts.available_hosts) >= min_hosts
                if is_enough and hosts.count_available_slots() >= size:
                    return hosts
                if self.finished():
                    why = self._error_message or self.worker_threads.failure or "it was stopped"
                    raise RuntimeError(f"the job is over: {why}")
                changed.wait(limit.remaining())
                limit.check_time_out_for("enough slots")

    def _discover_hosts(self) -> None:
        """Begins to look for hosts. The job is over if the first look fails."""
        self._discovery.start()
        try:
            self._discovery.first()
        except DiscoveryError as error:
            logging.error("%s", error)
            self.worker_threads.stop(str(error))
            self._discovery.stop()

    def _hosts_found(self, hosts: list[Host]) -> None:
        change = self.worker_threads.hosts_found(hosts)
        # Before the job starts, there is only somebody to tell if a subclass knows of workers.
        if change and _by_host(self._planned()) != self.host_assignments:
            self._notify(change)

    def _planned(self) -> list[SlotInfo]:
        hosts = self._host_manager.current_hosts
        if hosts.count_available_slots() < self._options.least:
            return []
        infos = [HostInfo(name, hosts.get_slots(name)) for name in hosts.host_assignment_order]
        return get_host_assignments(infos, self._options.least, self._options.most)

    def _tell_world(self, slots: list[SlotInfo]) -> None:
        self._rendezvous.init(slots)

    def _notify(self, change: Change) -> None:
        """Tells rank 0 that the next world will be another one."""
        coordinator = self.get_coordinator_info()
        client = self.get_worker_client(coordinator) if coordinator else None
        if client is None:
            return
        try:
            client.notify_hosts_updated(int(time.time()), int(change))
        except Exception as error:
            logging.warning("rank 0 cannot be told that the hosts have changed: %s", error)


def _by_host(slots: list[SlotInfo]) -> dict[str, list[SlotInfo]]:
    found: dict[str, list[SlotInfo]] = {}
    for slot in slots:
        found.setdefault(slot.hostname, []).append(slot)
    return found


def _one_of(name: str, value: int | None, old: int | None) -> int:
    """Returns the value of an argument, which may be given under its older name."""
    if value is None and old is None:
        raise TypeError(f"{name} is missing")
    return value if value is not None else old or 0
