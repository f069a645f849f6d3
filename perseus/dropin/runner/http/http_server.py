"""Stores of bytes by scope and key, which are read and written over HTTP: /scope/key.

Anybody who reaches the port may do so. What is stored is never unpickled here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import unquote

from perseus.dropin.runner.common.util.hosts import SlotInfo
from perseus.dropin.runner.util.network import find_port

__all__ = ["KVStoreHandler", "KVStoreServer", "RendezvousHandler", "RendezvousServer"]

_SECONDS_TO_READ = 3.0
_MOST_BYTES = 64 << 20


class Store(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a request may wait for other ranks

    def __init__(self, address: tuple[str, int], handler: type[KVStoreHandler]):
        super().__init__(address, handler)
        self.lock = threading.Lock()
        self.values: dict[tuple[str, str], bytes] = {}


class KVStoreHandler(BaseHTTPRequestHandler):
    """GET returns what PUT has stored. A subclass may answer in another way."""

    timeout = _SECONDS_TO_READ

    @property
    def _store(self) -> Store:
        return cast(Store, self.server)

    def do_GET(self) -> None:
        if (place := self._place()) is not None:
            self._answer(lambda: self._get_value(*place))

    def do_PUT(self) -> None:
        if (place := self._place()) is None:
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            return self.send_status_code(400)
        try:
            value = self.rfile.read(int(length))
        except TimeoutError:
            return self.send_status_code(408)
        if len(value) < int(length):
            return self.send_status_code(400)

        def put() -> bytes:
            self._put_value(*place, value)
            return b""

        self._answer(put)

    def _answer(self, action: Callable[[], bytes | None]) -> None:
        try:
            value = action()
        except ValueError:
            return self.send_status_code(400)
        if value is None:
            return self.send_status_code(404)
        self.send_status_code(200, value)

    def send_status_code(self, status_code: int, body: bytes = b"") -> None:
        self.send_response(status_code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _place(self) -> tuple[str, str] | None:
        """Returns the scope and the key; answers, and returns None, if there are none."""
        empty, *names = unquote(self.path).split("/")
        if empty or len(names) != 2:
            self.send_status_code(400)
            return None
        return names[0], names[1]

    def _get_value(self, scope: str, key: str) -> bytes | None:
        with self._store.lock:
            return self._store.values.get((scope, key))

    def _put_value(self, scope: str, key: str, value: bytes) -> None:
        with self._store.lock:
            self._store.values[scope, key] = value

    def log_message(self, format: str, *args: Any) -> None:
        """Does not write a line for each request."""


class RendezvousHandler(KVStoreHandler):
    def do_DELETE(self) -> None:
        if (place := self._place()) is not None:
            with self._store.lock:
                self._store.values.pop(place, None)
            self.send_status_code(200)


class _Server:
    """A store that is served from `start` to `stop`."""

    def __init__(self, verbose: int = 0):
        self._store: Store | None = None

    def _start(self, handler: type[KVStoreHandler]) -> int:
        store, port = find_port(lambda address: Store(address, handler))
        self._store = store
        threading.Thread(target=store.serve_forever, args=(0.05,), daemon=True).start()
        return port

    def _stop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.shutdown()
            store.server_close()


class RendezvousServer(_Server):
    def start(self, handler_cls: type[KVStoreHandler] = RendezvousHandler) -> int:
        """Returns the port."""
        return self._start(handler_cls)

    def init(self, host_alloc_plan: Sequence[SlotInfo]) -> None:
        """Forgets what the last world has stored."""
        if self._store is not None:
            with self._store.lock:
                self._store.values.clear()

    def stop(self) -> None:
        """Later calls do nothing."""
        self._stop()


class KVStoreServer(_Server):
    def start_server(self) -> int:
        """Returns the port."""
        return self._start(KVStoreHandler)

    def shutdown_server(self) -> None:
        self._stop()
