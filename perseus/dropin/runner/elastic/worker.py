"""How a worker hears from an ElasticDriver that the hosts have changed: by a service of its own.

Ranks of perseusrun and horovod.run hear it from their launcher, by perseus_core.driver_link.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from perseus.common.elastic import HostUpdateResult
from perseus.dropin.runner.common.util import network, secret
from perseus.dropin.runner.elastic.rendezvous import announce_worker

__all__ = [
    "HostUpdateResult",
    "HostsUpdatedRequest",
    "WorkerNotificationClient",
    "WorkerNotificationManager",
    "WorkerNotificationService",
]


class HostsUpdatedRequest:
    """Tells that the hosts have changed, as `res` says in the numbers of HostUpdateResult."""

    def __init__(self, timestamp: int, res: int = HostUpdateResult.no_update):
        self.timestamp = timestamp
        self.res = res


class Listener(Protocol):
    def on_hosts_updated(self, timestamp: int, update_res: int) -> object: ...


class WorkerNotificationManager:
    """Passes on to its listeners, such as a State, what this worker is told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._service: WorkerNotificationService | None = None
        self._listeners: list[Listener] = []

    def init(
        self,
        rendezvous_addr: str | None = None,
        rendezvous_port: int | None = None,
        nic: str | None = None,
        hostname: str | None = None,
        local_rank: int | None = None,
    ) -> None:
        """Starts a service, and tells a RendezvousServer where it is. Later calls do nothing.

        All that is not given comes from the variables that Horovod's launcher sets. Without an
        address there is nobody to tell, and no service.
        """
        address = rendezvous_addr or os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
        with self._lock:
            if self._service is not None or not address:
                return
            if rendezvous_port is None:
                rendezvous_port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
            if local_rank is None:
                local_rank = int(os.environ["HOROVOD_LOCAL_RANK"])
            key = secret.make_secret_key()
            service = WorkerNotificationService(
                key, nic or os.environ.get("HOROVOD_GLOO_IFACE"), self
            )
            worker = (hostname or os.environ["HOROVOD_HOSTNAME"], local_rank)
            try:
                announce_worker((address, rendezvous_port), worker, service.addresses(), key)
            except BaseException:
                service.shutdown()
                raise
            self._service = service

    def register_listener(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.remove(listener)

    def handle_hosts_updated(self, timestamp: int, update_res: int) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.on_hosts_updated(timestamp, update_res)


class WorkerNotificationService(network.BasicService):
    NAME = "worker notification service"

    def __init__(self, key: bytes, nic: str | None, manager: WorkerNotificationManager):
        self._manager = manager
        super().__init__(self.NAME, key, [nic] if nic else None)

    def _handle(self, req: Any, client_address: tuple[str, int]) -> Any:
        if isinstance(req, HostsUpdatedRequest):
            self._manager.handle_hosts_updated(req.timestamp, req.res)
            return network.AckResponse()
        return super()._handle(req, client_address)


class WorkerNotificationClient(network.BasicClient):
    def __init__(
        self, addresses: Mapping[str, Any], key: bytes, verbose: int, match_intf: bool = False
    ):
        name = WorkerNotificationService.NAME
        super().__init__(name, addresses, key, verbose, match_intf=match_intf)

    def notify_hosts_updated(self, timestamp: int, update_res: int) -> None:
        self._send(HostsUpdatedRequest(timestamp, update_res))
