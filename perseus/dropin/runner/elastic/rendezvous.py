"""The requests by which workers reach an ElasticDriver through a RendezvousServer."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perseus.dropin.runner.http.http_server import RendezvousHandler
from perseus.elastic.workers import Place

if TYPE_CHECKING:
    from perseus.dropin.runner.elastic.driver import ElasticDriver

__all__ = [
    "GET_RANK_AND_SIZE",
    "PUT_WORKER_ADDRESSES",
    "announce_worker",
    "create_rendezvous_handler",
]

#: The worker `host:local_rank` asks for its place in the next world, and waits for it.
GET_RANK_AND_SIZE = "rank_and_size"
#: It says where it wants to hear of changes.
PUT_WORKER_ADDRESSES = "worker_addresses"

_SECONDS_TO_ANNOUNCE = 30.0


def create_rendezvous_handler(driver: ElasticDriver) -> type[RendezvousHandler]:
    """Returns the class to start a RendezvousServer with."""

    class ElasticRendezvousHandler(RendezvousHandler):
        def _get_value(self, scope: str, key: str) -> bytes | None:
            if scope != GET_RANK_AND_SIZE:
                return super()._get_value(scope, key)
            host, slot = _worker(key)
            driver.record_ready(host, slot)
            return driver.get_slot_info(host, slot).to_response_string().encode()

        def _put_value(self, scope: str, key: str, value: bytes) -> None:
            if scope == PUT_WORKER_ADDRESSES:
                addresses, secret_key = _read(value)
                try:
                    driver.register_worker_server(*_worker(key), addresses, secret_key)
                except RuntimeError as error:  # nobody answers there
                    logging.warning("%s cannot be told of changes: %s", key, error)
            super()._put_value(scope, key, value)

    return ElasticRendezvousHandler


def announce_worker(
    server: tuple[str, int],
    worker: Place,
    addresses: Mapping[str, Sequence[tuple[str, int]]],
    key: bytes,
) -> None:
    """Tells a RendezvousServer of a worker's service. Raises OSError if that fails.

    It is not pickled, as in Horovod: the server cannot know who has sent it.
    """
    host, port = server
    url = f"http://{host}:{port}/{PUT_WORKER_ADDRESSES}/{worker[0]}:{worker[1]}"
    text = json.dumps({"addresses": addresses, "key": key.hex()})
    request = urllib.request.Request(url, data=text.encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=_SECONDS_TO_ANNOUNCE):
        pass


def _worker(key: str) -> Place:
    host, _, slot = key.rpartition(":")
    return host, int(slot)


def _read(value: bytes) -> tuple[dict[str, Any], bytes]:
    """Raises ValueError for what `announce_worker` has not written."""
    match json.loads(value):
        case {"addresses": dict(addresses), "key": str(key)}:
            found = {
                str(name): [(str(host), int(port)) for host, port in each]
                for name, each in addresses.items()
            }
            return found, bytes.fromhex(key)
    raise ValueError("addresses of a worker must be an object with addresses and key")
