"""The threads of a service: one that listens, and one for each caller that has the key."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from perseus.dropin.runner.common.util.wire import ANSWER_BYTES, Wire, enter
from perseus.dropin.runner.util.threads import in_thread
from perseus.run.call_back import seconds_until
from perseus.run.caller_pool import PROOF_SECONDS, Caller, CallerPool
from perseus.run.free_port import listen_anywhere

__all__ = ["Server"]

_LONGEST_WAIT_SECONDS = 3600.0

#: Called with a request, the wire and the file for the reply, and the client's address.
Serve = Callable[[Any, Wire, BinaryIO, tuple[str, int]], None]


class Server:
    """Listens at a free port of all interfaces, and serves one request of each caller.

    Strangers never have a thread. A caller must have proven itself and begun its request within
    five seconds; then it may take all the time that it needs.

    Args:
      serve: carries a request out. The client may go away at any time, so EOFError, OSError and
        RuntimeError end that request alone.
    """

    def __init__(self, key: bytes, serve: Serve):
        self._key = key
        self._serve = serve
        self._lock = threading.Lock()  # for the next three
        self._is_over = False
        self._threads: set[threading.Thread] = set()  # of callers that have proven themselves
        self._asking: set[socket.socket] = set()  # those of them whose request is not whole yet
        self._selector = selectors.DefaultSelector()
        self._callers = CallerPool(self._selector, listen_anywhere(""), ANSWER_BYTES, self._take_in)
        self.port = self._callers.port
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: None)
        self._listening = in_thread(self._listen)

    def shutdown(self) -> None:
        """Stops listening, and waits for the requests that are whole. Other callers are dropped."""
        with self._lock:
            self._is_over = True
            for connection in self._asking:
                with contextlib.suppress(OSError):  # it has gone already
                    connection.shutdown(socket.SHUT_RDWR)
        self._wake.close()
        self._listening.join()
        with self._lock:
            serving = list(self._threads)
        for thread in serving:
            thread.join()

    def _listen(self) -> None:
        with self._selector, self._woken:
            while not self._is_over:
                wait = self._callers.next_deadline() - time.monotonic()
                for key, _ in self._selector.select(max(0, min(wait, _LONGEST_WAIT_SECONDS))):
                    key.data()
                self._callers.handle_deadlines(time.monotonic())
            self._callers.close()

    def _take_in(self, caller: Caller) -> None:
        """Gives a caller a thread, if it has the key."""
        try:
            wire = enter(self._key, caller.challenge, caller.answer)
            caller.connection.send(wire.welcome())
            with self._lock:
                self._check_is_open()
                self._threads.add(in_thread(self._attend, (caller, wire)))
                self._asking.add(caller.connection)
        except (OSError, RuntimeError):  # a stranger, or one that has gone, or one thread too many
            caller.connection.close()

    def _attend(self, caller: Caller, wire: Wire) -> None:
        connection = caller.connection
        try:
            with contextlib.suppress(EOFError, OSError, RuntimeError), connection:
                request = self._request(caller, wire)
                with connection.makefile("wb") as wfile:
                    self._serve(request, wire, wfile, connection.getpeername())
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                self._asking.discard(connection)

    def _request(self, caller: Caller, wire: Wire) -> Any:
        connection = caller.connection
        with connection.makefile("rb") as rfile:
            connection.settimeout(seconds_until(caller.came + PROOF_SECONDS))
            length = wire.read_length(rfile)
            connection.settimeout(None)
            request = wire.read_object(rfile, length)
        with self._lock:
            self._check_is_open()
            self._asking.discard(connection)
        return request

    def _check_is_open(self) -> None:
        if self._is_over:
            raise ConnectionAbortedError("the service was shut down")
