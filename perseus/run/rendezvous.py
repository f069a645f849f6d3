"""The place where the ranks of a job find each other, served by the launcher."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perseus.run.environment import first_set
from perseus.run.host_connection import RemoteShell
from perseus.run.hosts import is_local
from perseus.run.network import address_of_interface, address_toward

# Set where a resource manager has given hosts to the job: Slurm, PBS, LSF, Grid Engine.
_ALLOCATIONS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")


def own_addresses(
    hosts: Sequence[str], environment: Mapping[str, str], remote_shell: RemoteShell
) -> dict[str, str]:
    """The address of this machine as each host reaches it.

    `environment` is what the ranks get: it may choose the interface. Raises ValueError for a host
    without a route to us.
    """
    interfaces = named_interfaces(environment)
    return {host: _address(host, interfaces, remote_shell) for host in dict.fromkeys(hosts)}


@dataclass(frozen=True)
class Meeting:
    """seen_from: from a host to the rendezvous's "address:port" there. note_ended: for a rank whose
    process has ended. left_out: ranks without which the survivors have met."""

    seen_from: Callable[[str], str]
    note_ended: Callable[[int], None] = lambda _: None
    left_out: Callable[[], Sequence[int]] = tuple


@contextlib.contextmanager
def serve_rendezvous(
    size: int, secret: str, addresses: Mapping[str, str], least: int | None = None
) -> Iterator[Meeting]:
    """Serves until the context ends. `addresses` are those of this machine, by host.

    least: how many survivors are enough to go on.
    """
    from perseus_core import Rendezvous

    only_here = all(map(is_local, addresses))
    listen_on = "127.0.0.1" if only_here else ""
    with Rendezvous(size, secret, listen_on, least=least or 1) as rendezvous:
        yield Meeting(
            lambda host: _join(addresses[host], rendezvous.port),
            rendezvous.note_ended,
            rendezvous.left_out,
        )


def call_back_address(
    hosts: Sequence[str], environment: Mapping[str, str], remote_shell: RemoteShell
) -> tuple[str, str]:
    """Where the agents that mpirun starts reach us, and what to listen on for them.

    Raises ValueError if a host has no route to us.
    """
    remote = next((host for host in hosts if not is_local(host)), None)
    if remote is not None:
        return _address(remote, named_interfaces(environment), remote_shell), ""
    if first_set(environment, *_ALLOCATIONS):
        return socket.gethostname(), ""  # mpirun knows other hosts than this one
    return "127.0.0.1", "127.0.0.1"


def named_interfaces(environment: Mapping[str, str]) -> list[str]:
    """Those that the ranks are told to talk over; none: any."""
    named = first_set(environment, "PERSEUS_INTERFACES", "HOROVOD_GLOO_IFACE")
    return [name.strip() for name in named.split(",") if name.strip()]


def _address(host: str, interfaces: Sequence[str], remote_shell: RemoteShell) -> str:
    if is_local(host):
        return "127.0.0.1"
    if interfaces:
        return address_of_interface(interfaces)
    return address_toward(remote_shell.name_on_network(host))


def _join(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
