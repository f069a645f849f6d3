"""Services that answer requests over TCP, and their clients. Both prove that they have one key.

A message is its HMAC-SHA256, its length as 8 bytes, and the pickled object. Nothing is unpickled
before the digest has been checked.
"""

from __future__ import annotations

import contextlib
import pickle
import shutil
import socket
import socketserver
import struct
from codecs import getreader, getwriter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import cloudpickle

from perseus.dropin.runner.common.util import secret
from perseus.dropin.runner.util.network import interface_addresses
from perseus.dropin.runner.util.threads import in_thread

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
_LENGTH = struct.Struct("!Q")
#: No message is longer than this many bytes; it bounds what a stranger can have us read.
_MOST_BYTES = 1 << 30


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
    """UTF-8 text follows, up to the end of the connection."""


class Wire:
    """Reads and writes objects that are signed with a key."""

    def __init__(self, key: bytes):
        self._key = key

    def write(self, obj: Any, wfile: BinaryIO) -> None:
        message = cloudpickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
        digest = secret.compute_digest(self._key, message)
        wfile.write(digest + _LENGTH.pack(len(message)) + message)
        wfile.flush()

    def stream(self, stream: Any, wfile: BinaryIO) -> None:
        """Copies a text stream to its end."""
        shutil.copyfileobj(stream, getwriter("utf-8")(wfile))
        wfile.flush()

    def read(self, rfile: BinaryIO) -> Any:
        """EOFError if the connection ends before; RuntimeError for another key's message."""
        head = _read_exactly(rfile, secret.DIGEST_LENGTH + _LENGTH.size)
        digest, (length,) = (
            head[: secret.DIGEST_LENGTH],
            _LENGTH.unpack_from(head, secret.DIGEST_LENGTH),
        )
        if length > _MOST_BYTES:
            raise RuntimeError(f"a message of {length} bytes was announced; no message is so long")
        message = _read_exactly(rfile, length)
        if not secret.check_digest(self._key, message, digest):
            raise RuntimeError("a message's digest is wrong: the sender does not have our key")
        return cloudpickle.loads(message)


def _read_exactly(rfile: BinaryIO, length: int) -> bytes:
    data = rfile.read(length)
    if len(data) < length:
        raise EOFError("the connection ended within a message")
    return data


class BasicService:
    """Listens on a free port of all interfaces, or says that it does on `nics` alone.

    Each request is handled in a thread of its own. Subclasses override `_handle`.
    """

    def __init__(self, service_name: str, key: bytes, nics: Iterable[str] | None):
        self._service_name = service_name
        self._wire = Wire(key)
        service = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                # The client may go away at any time, and it may be a stranger.
                with contextlib.suppress(EOFError, OSError, RuntimeError):
                    service._serve(self.rfile, self.wfile, self.client_address)

        self._server = socketserver.ThreadingTCPServer(("", 0), Handler)
        self._server.daemon_threads = False
        self._port: int = self._server.server_address[1]
        chosen = set(nics) if nics else None
        self._addresses = {
            name: [(address, self._port)]
            for name, address in interface_addresses().items()
            if chosen is None or name in chosen
        }
        if not self._addresses:
            self._server.server_close()
            raise NoValidAddressesFound(f"none of the interfaces {nics} has an IPv4 address")
        self._thread = in_thread(self._server.serve_forever, (0.05,))

    def _serve(self, rfile: Any, wfile: Any, client_address: tuple[str, int]) -> None:
        response = self._handle(self._wire.read(rfile), client_address)
        response, stream = response if isinstance(response, tuple) else (response, None)
        self._wire.write(response, wfile)
        if stream is not None:
            self._wire.stream(stream, wfile)

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
        """Stops listening, and waits for the requests under way."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BasicClient:
    """Sends requests to the first address at which the service answers.

    A request whose connection fails is sent again, so it must do no harm twice.

    Args:
      match_intf: only addresses that are reached over the interface of the same name here.
      probe_timeout: seconds in which an address must answer.
      attempts: how often an address is tried.
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
        self._wire = Wire(key)
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
        for _ in range(self._attempts):
            try:
                with self._connection(address, self._probe_timeout) as (rfile, wfile):
                    self._wire.write(PingRequest(), wfile)
                    response = self._wire.read(rfile)
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
        self, address: tuple[str, int], timeout: float | None
    ) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        with socket.create_connection(address, timeout) as connection:
            with connection.makefile("rb") as rfile, connection.makefile("wb") as wfile:
                yield rfile, wfile

    def _send(self, req: Any, stream: Any = None) -> Any:
        """Returns the response; text that follows it goes to `stream`."""
        address = next(iter(self._addresses.values()))[0]
        for attempt in range(1, self._attempts + 1):
            try:
                with self._connection(address, None) as (rfile, wfile):
                    self._wire.write(req, wfile)
                    response = self._wire.read(rfile)
                    if stream is not None and isinstance(response, AckStreamResponse):
                        shutil.copyfileobj(getreader("utf-8")(rfile), stream)
                    return response
            except (EOFError, OSError):
                if attempt == self._attempts:
                    raise
        raise ValueError(f"attempts is {self._attempts}; it must be at least 1")

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Returns the addresses at which the service answered."""
        return self._addresses
