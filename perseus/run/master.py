"""MASTER_ADDR and MASTER_PORT: where the ranks of torch.distributed meet, as torchrun says it."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Mapping

from perseus.run.host_connection import RemoteShell

# On another machine no port can be looked for: one below those that systems give out by themselves.
_FIRST_PORT = 15000
_PORTS = 16000


class Master:
    """A port at rank 0 for the store of torch.distributed. Rank 0 here: kept for it until `close`.

    What the user's environment says already stays, for there it may have been chosen with care, in
    a batch script, say; but not what belongs to another launcher, under which perseusrun was
    started, nor a loopback address when there are several hosts.
    """

    def __init__(self, environment: Mapping[str, str], *, here: bool, several_hosts: bool):
        """`here`: rank 0 runs on this machine."""
        self._kept = _kept(environment, several_hosts)
        self._reservation: socket.socket | None = None
        if "MASTER_PORT" in self._kept:
            return
        if here:
            self._reservation = _reserve()
            port = self._reservation.getsockname()[1]
        else:
            port = _FIRST_PORT + secrets.randbelow(_PORTS)
        self._kept["MASTER_PORT"] = str(port)

    def environment(self, address: str) -> dict[str, str]:
        """For a rank that reaches rank 0's host at `address`."""
        return {"MASTER_ADDR": address, **self._kept}

    def close(self) -> None:
        if self._reservation:
            self._reservation.close()


def address_of(host: str, remote_shell: RemoteShell) -> str:
    """An address of another host; its name if that is not known here, for it may be known there."""
    name = remote_shell.name_on_network(host)
    with contextlib.suppress(OSError):
        return str(socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0][4][0])
    return name


def _kept(environment: Mapping[str, str], several_hosts: bool) -> dict[str, str]:
    if environment.get("RANK") or environment.get("WORLD_SIZE"):
        return {}
    kept = {name: environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")}
    if several_hosts and _is_loopback(kept["MASTER_ADDR"]):
        del kept["MASTER_ADDR"]
    return {name: value for name, value in kept.items() if value}


def _is_loopback(address: str) -> bool:
    return address in ("localhost", "::1") or address.startswith("127.")


def _reserve() -> socket.socket:
    """A port that nobody is given by chance, but that the store can listen on meanwhile: as long as
    nobody listens on it, Linux lets two sockets have it that both say SO_REUSEADDR."""
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("", 0))
    return reservation
