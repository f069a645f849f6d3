"""The rendezvous at which the ranks of a job find each other, served by the launcher."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perseus.run.environment import first_set
from perseus.run.hosts import is_local
from perseus.run.network import address_of_interface, address_toward
from perseus.run.remote_shell import RemoteShell

# Variables that are set if a resource manager has assigned hosts: Slurm, PBS, LSF, Grid Engine.
ALLOCATIONS = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")


def own_addresses(
    hosts: Sequence[str], environment: Mapping[str, str], remote_shell: RemoteShell
) -> dict[str, str]:
    """Returns the address at which each host reaches this machine.

    `environment` is that of the ranks, which may choose the interface. Raises ValueError for a host
    without a route to this machine.
    """
    interfaces = named_interfaces(environment)
    places = dict.fromkeys(hosts)
    away = {host: _address(host, interfaces, remote_shell) for host in places if not is_local(host)}
    # Ranks on this machine use the address that all others use, so that one is enough to listen on.
    here = _only_one(away.values()) or "127.0.0.1"
    return {host: away.get(host, here) for host in places}


@dataclass(frozen=True)
class ServedRendezvous:
    """Gives the launcher access to a rendezvous that is being served.

    Attributes:
      seen_from: from a host to the "address:port" at which it reaches the rendezvous.
      add_rank: notes that one more rank is started, on a host; its number is the next one.
      note_ended: notes that the process of a rank has ended, and how.
      has_met: returns whether these ranks have met in a world of this name, which only they know.
    """

    seen_from: Callable[[str], str]
    add_rank: Callable[[str], None] = lambda _: None
    note_ended: Callable[[int, str], None] = lambda *_: None
    has_met: Callable[[str, Sequence[int]], bool] = lambda *_: False


@contextlib.contextmanager
def serve_rendezvous(
    hosts: Sequence[str],
    secret: str,
    addresses: Mapping[str, str],
    listen_on: str | None = None,
) -> Iterator[ServedRendezvous]:
    """Serves a rendezvous until the context ends.

    Args:
      hosts: the host of each rank.
      addresses: this machine's, by host.
      listen_on: one of these addresses, or "" for every interface. By default, it is the address if
        it is the same for all hosts, else every interface.
    """
    from perseus_core import HorovodInternalError, Rendezvous

    if listen_on is None:
        listen_on = _only_one(addresses.values())
    try:
        served = Rendezvous(len(hosts), secret, listen_on, hosts=hosts)
    except HorovodInternalError as error:
        raise ValueError(f"the rendezvous of the ranks cannot be served: {error}") from None
    with served as rendezvous:
        yield ServedRendezvous(
            lambda host: _join(addresses[host], rendezvous.port),
            rendezvous.add_rank,
            rendezvous.note_ended,
            rendezvous.has_met,
        )


def call_back_address(
    hosts: Sequence[str], environment: Mapping[str, str], remote_shell: RemoteShell
) -> tuple[str, str]:
    """Returns the address for agents that mpirun starts, and the one to listen on.

    The latter is the same, or "" for every interface. Raises ValueError if a host has no route to
    this machine.
    """
    interfaces = named_interfaces(environment)
    remote = next((host for host in hosts if not is_local(host)), None)
    address = "127.0.0.1"
    if remote is not None:
        address = _address(remote, interfaces, remote_shell)
    elif first_set(environment, *ALLOCATIONS):  # mpirun may use other hosts than this one
        if not interfaces:
            return socket.gethostname(), ""
        address = address_of_interface(interfaces)
    return address, address


def named_interfaces(environment: Mapping[str, str]) -> list[str]:
    """Returns the interfaces that the ranks must use; an empty list for any."""
    named = first_set(environment, "PERSEUS_INTERFACES", "HOROVOD_GLOO_IFACE")
    return [name.strip() for name in named.split(",") if name.strip()]


def _address(host: str, interfaces: Sequence[str], remote_shell: RemoteShell) -> str:
    """Returns the address at which another host reaches us."""
    if interfaces:
        return address_of_interface(interfaces)
    return address_toward(remote_shell.name_on_network(host))


def _only_one(addresses: Iterable[str]) -> str:
    """Returns the only address among these; "" if there are several or none."""
    distinct = set(addresses)
    return distinct.pop() if len(distinct) == 1 else ""


def _join(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
