"""The place where the ranks of a job find each other, served by the launcher."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from perseus.run.environment import first_set
from perseus.run.host_connection import RemoteShell
from perseus.run.hosts import is_local
from perseus.run.network import address_of_interface, address_toward


@contextlib.contextmanager
def serve_rendezvous(
    hosts_of_ranks: Sequence[str],
    secret: str,
    environment: Mapping[str, str],
    remote_shell: RemoteShell,
) -> Iterator[Callable[[str], str]]:
    """Serves until the context ends; gives a function from a host to "address:port" as seen there.

    `hosts_of_ranks` names each rank's host, `environment` is what the ranks get: it may choose the
    interface. Raises ValueError if a host has no route to it.
    """
    from perseus_core import Rendezvous

    named = first_set(environment, "PERSEUS_INTERFACES", "HOROVOD_GLOO_IFACE")
    interfaces = [name.strip() for name in named.split(",") if name.strip()]
    addresses = {
        host: _address(host, interfaces, remote_shell) for host in dict.fromkeys(hosts_of_ranks)
    }
    only_here = all(map(is_local, addresses))
    listen_on = "127.0.0.1" if only_here else ""
    with Rendezvous(len(hosts_of_ranks), secret, listen_on) as rendezvous:
        yield lambda host: _join(addresses[host], rendezvous.port)


def _address(host: str, interfaces: Sequence[str], remote_shell: RemoteShell) -> str:
    if is_local(host):
        return "127.0.0.1"
    if interfaces:
        return address_of_interface(interfaces)
    return address_toward(remote_shell.name_on_network(host))


def _join(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
