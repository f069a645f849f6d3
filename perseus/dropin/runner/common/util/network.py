"""Services that answer requests over TCP, and their clients. Both prove that they have one key.

Nothing is unpickled, and no length counts, before its MAC has been checked (wire.py). Callers that
have not proven yet that they have the key get no thread, and few descriptors (server.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from perseus.dropin.runner.common.util.server import Server
from perseus.dropin.runner.common.util.wire import Wire, call, pickled
from perseus.dropin.runner.util.network import interface_addresses
from perseus.run.call_back import CALL_BACK_SECONDS, seconds_until

__all__ = [
    "AckResponse",
    "AckStreamResponse",
    "BasicClient",
    "BasicService",
    "NoValidAddressesFound",
    "PingRequest",
    "PingResponse",
    "Wire",
]

Addresses = Mapping[str, Sequence[tuple[str, int]]]


class NoValidAddressesFound(Exception):
    """A service has no address, or a client reaches none of those that it was given."""


class PingRequest:
    """Asks a service for its name."""


class PingResponse:
    def __init__(self, service_name: str, source_address: str):
        self.service_name = service_name
        self.source_address = source_address  # the client's, as the service sees it


class AckResponse:
    """A request was carried out, and there is nothing more to say."""


class AckStreamResponse:
    """Text follows. Its end is proven, too."""


class BasicService:
    """Listens on a free port of all interfaces, or says that it does on `nics` alone.

    Each request is handled in a thread of its own. Subclasses override `_handle`.
    """

    def __init__(self, service_name: str, key: bytes, nics: Iterable[str] | None):
        self._service_name = service_name
        chosen = set(nics) if nics else None
        found = {
            name: address
            for name, address in interface_addresses().items()
            if chosen is None or name in chosen
        }
        if not found:
            raise NoValidAddressesFound(f"none of the interfaces {nics} has an IPv4 address")
        self._server = Server(key, self._serve)
        self._port = self._server.port
        self._addresses = {name: [(address, self._port)] for name, address in found.items()}

    def _serve(
        self, request: Any, wire: Wire, wfile: BinaryIO, client_address: tuple[str, int]
    ) -> None:
        response = self._handle(request, client_address)
        response, stream = response if isinstance(response, tuple) else (response, None)
        wire.write(response, wfile)
        if stream is not None:
            wire.stream(stream, wfile)

    def _handle(self, req: Any, client_address: tuple[str, int]) -> Any:
        """Returns the response to a request: an object, or that and a text stream to follow."""
        if isinstance(req, PingRequest):
            return PingResponse(self._service_name, client_address[0])
        return NotImplementedError(f"{self._service_name} has no answer to a {type(req).__name__}")

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Returns addresses and ports by the names of the interfaces."""
        return dict(self._addresses)

    def get_port(self) -> int:
        return self._port

    def shutdown(self) -> None:
        """Stops listening, and waits for the requests under way. Never waits for strangers."""
        self._server.shutdown()


class BasicClient:
    """Sends requests to the first address at which the service answers.

    A request whose connection fails is sent again, so it must do no harm twice.

    Args:
      match_intf: only addresses that are reached over the interface of the same name here.
      probe_timeout: seconds in which an address must answer. A service drops clients that have
        another key, and a few in a flood of strangers, so a client calls again within this time.
      attempts: how often an address is tried, or a request sent, if the connection fails.
    """

    def __init__(
        self,
        service_name: str,
        addresses: Addresses,
        key: bytes,
        verbose: int,
        match_intf: bool = False,
        probe_timeout: float = 20,
        attempts: int = 3,
    ):
        self._service_name = service_name
        self._key = key
        self._verbose = verbose
        self._match_intf = match_intf
        self._probe_timeout = probe_timeout
        self._attempts = attempts
        self._addresses = self._probe(addresses)
        if not self._addresses:
            raise NoValidAddressesFound(
                f"{service_name} answers at none of the addresses {dict(addresses)}; check that "
                "this host reaches them, and that both sides have the same key"
            )

    def _probe(self, addresses: Addresses) -> dict[str, list[tuple[str, int]]]:
        candidates = [
            (name, (host, port)) for name, each in addresses.items() for host, port in each
        ]
        if not candidates:
            return {}
        reached: dict[str, list[tuple[str, int]]] = {}
        with ThreadPoolExecutor(min(64, len(candidates))) as pool:
            answers = pool.map(lambda candidate: self._answers(*candidate), candidates)
            for (name, address), answered in zip(candidates, answers, strict=True):
                if answered:
                    reached.setdefault(name, []).append(address)
        return reached

    def _answers(self, interface: str, address: tuple[str, int]) -> bool:
        deadline = time.monotonic() + self._probe_timeout
        for _ in range(self._attempts):
            try:
                with self._connection(address, deadline, answers=True) as (wire, rfile, wfile):
                    wire.write(PingRequest(), wfile)
                    response = wire.read(rfile)
            except (EOFError, OSError, RuntimeError):
                continue
            if getattr(response, "service_name", None) != self._service_name:
                return False
            return not self._match_intf or self._came_from(interface, response.source_address)
        return False

    def _came_from(self, interface: str, source: str) -> bool:
        here = interface_addresses()
        if here.get(interface) == source:
            return True
        if self._verbose >= 2:
            other = next((name for name, address in here.items() if address == source), source)
            print(f"{self._service_name} is reached over {other}, and not over {interface}")
        return False

    @contextlib.contextmanager
    def _connection(
        self, address: tuple[str, int], deadline: float, *, answers: bool = False
    ) -> Iterator[tuple[Wire, BinaryIO, BinaryIO]]:
        """Connects before the deadline, by which the service must also answer if `answers`."""
        connection, wire = call(address, self._key, deadline)
        with connection, connection.makefile("rb") as rfile, connection.makefile("wb") as wfile:
            connection.settimeout(seconds_until(deadline) if answers else None)
            yield wire, rfile, wfile

    def _send(self, req: Any, stream: Any = None) -> Any:
        """Returns the response; text that follows it goes to `stream`."""
        address = next(iter(self._addresses.values()))[0]
        message = pickled(req)  # before we connect, as the service does not wait for us
        response = None
        for attempt in range(1, self._attempts + 1):
            try:
                deadline = time.monotonic() + CALL_BACK_SECONDS
                with self._connection(address, deadline) as (wire, rfile, wfile):
                    wire.write_pickled(message, wfile)
                    response = wire.read(rfile)
                    if stream is not None and isinstance(response, AckStreamResponse):
                        wire.read_stream(rfile, stream)
                    return response
            except (EOFError, OSError):
                # A part of the text has gone to `stream`, and must not go there twice.
                if attempt == self._attempts or isinstance(response, AckStreamResponse):
                    raise
        raise ValueError(f"attempts is {self._attempts}; it must be at least 1")

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Returns the addresses at which the service answered."""
        return self._addresses
