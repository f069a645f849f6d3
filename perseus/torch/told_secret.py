"""How rank 0 tells the ranks of its host a secret that nobody else can learn.

They are processes of one user. Each side learns the other's user from the kernel, by a Unix socket.
Its name is random and belongs to rank 0 before anybody hears of it, so nobody can take it first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import struct
import threading
import time

__all__ = ["SecretTeller", "ask", "place_to_ask"]

_CREDENTIALS = struct.Struct("3i")  # process, user, group
_NOBODY = 65534  # the user that many programs share, so that it tells nothing
_ANSWER_TIME, _PAUSE = 10.0, 0.001  # in seconds


def place_to_ask() -> str:
    """Returns what is the same for all processes that can ask each other, and for no others."""
    if os.geteuid() == _NOBODY:
        return secrets.token_hex(32)
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    network = os.readlink("/proc/self/ns/net")
    return hashlib.sha256(f"{boot} {network} {os.geteuid()}".encode()).hexdigest()


class SecretTeller:
    """Tells the secret to every process of this user that asks, until it is closed."""

    def __init__(self, secret: str) -> None:
        self.name = f"perseus-{secrets.token_hex(32)}"
        self._secret = secret.encode()
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(socket.SOMAXCONN)
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends accept
        self._thread.join()
        self._listener.close()

    def _tell(self) -> None:
        while not self._closed.is_set():
            try:
                caller, _ = self._listener.accept()
            except OSError:  # it is closed, or descriptors have run out
                self._closed.wait(0.1)
                continue
            with caller, contextlib.suppress(OSError):
                if _user_of(caller) == os.geteuid():
                    caller.sendall(self._secret)  # so few bytes fit into the socket's buffer


def ask(name: str) -> str:
    """Returns the secret of the SecretTeller of that name; OSError if there is none of this user's
    that answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(_ANSWER_TIME)
        _connect(caller, f"\0{name}")
        if (user := _user_of(caller)) != os.geteuid():
            raise PermissionError(f"user {user} has the Unix socket '{name}'")
        told = b""
        while part := caller.recv(4096):
            told += part
    if not told:
        raise ConnectionError(f"the Unix socket '{name}' was closed")
    return told.decode("ascii")


def _connect(caller: socket.socket, name: str) -> None:
    end = time.monotonic() + _ANSWER_TIME
    while True:
        try:
            return caller.connect(name)
        except BlockingIOError:  # its queue is full of others, who will be sent away
            if time.monotonic() >= end:
                raise
            time.sleep(_PAUSE)


def _user_of(other: socket.socket) -> int:
    size = _CREDENTIALS.size
    user: int = _CREDENTIALS.unpack(other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[
        1
    ]
    return user
