"""MASTER_ADDR and MASTER_PORT, where the ranks of torch.distributed meet, as torchrun sets them."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Mapping

from perseus.run.checks import note_on_master_port
from perseus.run.remote_shell import RemoteShell

# A free port on another machine is a guess, below the ports that systems assign by themselves.
_FIRST_PORT = 15000
_PORTS = 16000


class Master:
    """A port at rank 0 for the store of torch.distributed.

    If rank 0 is on this machine, the port is reserved until `close`. Variables that the user has
    set are kept, because a batch script may have chosen them with care. They are not kept if they
    belong to another launcher that started perseusrun, nor a loopback address if there are several
    hosts.
    """

    def __init__(self, environment: Mapping[str, str], *, here: bool, several_hosts: bool):
        """`here` says whether rank 0 runs on this machine."""
        self._kept = _kept(environment, several_hosts)
        self._reservation: socket.socket | None = None
        self.note: str | None = None  # for the user, of a port that will not do
        if "MASTER_PORT" in self._kept:
            if here:
                self.note = note_on_master_port(self._kept["MASTER_PORT"])
            return
        if here:
            self._reservation = _reserve()
            port = self._reservation.getsockname()[1]
        else:
            port = _FIRST_PORT + secrets.randbelow(_PORTS)
        self._kept["MASTER_PORT"] = str(port)

    def environment(self, address: str) -> dict[str, str]:
        """Returns the variables for a rank that reaches rank 0's host at `address`."""
        return {"MASTER_ADDR": address, **self._kept}

    def close(self) -> None:
        if self._reservation:
            self._reservation.close()


def address_of(host: str, remote_shell: RemoteShell) -> str:
    """Returns another host's address, or its name if this machine cannot resolve it."""
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
    """Reserves a port that the system will not assign, but that the store can listen on.

    As long as no socket listens on a port, Linux lets two sockets with SO_REUSEADDR have it.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("", 0))
    return reservation
