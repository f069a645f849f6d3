"""MASTER_ADDR and MASTER_PORT, where the ranks of torch.distributed meet, as torchrun sets them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from perseus.run.checks import note_on_master_port
from perseus.run.free_port import secret_port
from perseus.run.port_holder import holder_of_port, name_of_user
from perseus.run.remote_shell import RemoteShell


class Master:
    """A port at rank 0 for the store of torch.distributed.

    Variables that the user has set are kept, because a batch script may have chosen them with care.
    They are not kept if they belong to another launcher that started perseusrun, nor a loopback
    address if there are several hosts.
    """

    def __init__(self, environment: Mapping[str, str], *, here: bool, several_hosts: bool):
        """`here` says whether rank 0 runs on this machine."""
        self._kept = _kept(environment, several_hosts)
        self._is_here = here
        self.note: str | None = None  # for the user, of a port that will not do
        if "MASTER_PORT" not in self._kept:
            self._kept["MASTER_PORT"] = str(secret_port(here=here))
        elif here:
            self.note = note_on_master_port(self._kept["MASTER_PORT"])

    def environment(self, address: str) -> dict[str, str]:
        """Returns the variables for a rank that reaches rank 0's host at `address`."""
        return {"MASTER_ADDR": address, **self._kept}

    def note_on_stranger(self) -> str | None:
        """Returns a line for the user if another user listens at the port, else None."""
        port = self._kept["MASTER_PORT"]
        holder = holder_of_port(int(port)) if self._is_here and port.isdecimal() else None
        if holder is None or holder == os.geteuid():
            return None
        return (
            f"{name_of_user(holder)} listens at MASTER_PORT, {port}, where rank 0 of "
            "torch.distributed was to listen"
        )


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
