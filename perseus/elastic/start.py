"""Starts an elastic job as a user asks for it; perseusrun and `run` share this."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from perseus.elastic.discovery import DISCOVERY_SECONDS, HostSource
from perseus.elastic.launcher import ElasticLauncher
from perseus.elastic.options import ElasticOptions, host_source
from perseus.elastic.sources import FixedSource
from perseus.elastic.torch_places import TorchPlaces
from perseus.run.hosts import Host, slots_on
from perseus.run.network import address_of_interface
from perseus.run.remote_shell import RemoteShell
from perseus.run.rendezvous import named_interfaces, own_addresses, serve_rendezvous
from perseus.run.start import Request, make_output, prepare

__all__ = ["start_elastic"]

# The folder of output has names for so many ranks, in their order.
_MOST_WORKERS = 1000


def start_elastic(
    request: Request,
    options: ElasticOptions,
    interval: Callable[[], float] = lambda: DISCOVERY_SECONDS,
) -> tuple[ElasticLauncher, int]:
    """Runs an elastic job to its end; returns its launcher, and its exit status.

    `request.size` is how many slots it waits for before it starts, and `interval` returns the
    seconds between two looks for hosts.

    Raises ValueError if it cannot start: the hosts cannot be found out, a malformed setting.
    """
    request = replace(request, least=None)  # the driver says when too few are left
    source = host_source(options, request.hosts, request.size)
    hosts = source.find()
    job, environment = prepare(request, slots_on(list(_first_hosts(hosts, request.size))))
    addresses = _Addresses(environment, job.remote_shell)
    listen_on = _listen_on(source, [host.name for host in hosts], addresses)
    output = make_output(request, options.most or _MOST_WORKERS)
    with serve_rendezvous((), job.secret, addresses, listen_on=listen_on) as job.rendezvous:
        places = TorchPlaces(addresses, job.remote_shell)
        launcher = ElasticLauncher(
            job, output, options, request.size, source, hosts, places, interval
        )
        return launcher, launcher.run()


def _first_hosts(hosts: Sequence[Host], size: int) -> itertools.islice[str]:
    return itertools.islice((host.name for host in hosts for _ in range(host.slots)), size)


def _listen_on(source: HostSource, hosts: Sequence[str], addresses: _Addresses) -> str | None:
    """Returns the address for the rendezvous; "" for all, and None for the one that hosts use.

    Hosts that come later may reach this machine at another address than those that there are.
    Raises ValueError if the hosts stay the same, and one of them cannot be reached.
    """
    if isinstance(source, FixedSource):
        addresses.find(hosts)
        return None
    return addresses.of_interfaces or ""


class _Addresses(dict[str, str]):
    """The address at which each host reaches this machine, found out when it is asked for.

    Looking up a host that cannot be reached raises ValueError.
    """

    def __init__(self, environment: Mapping[str, str], remote_shell: RemoteShell) -> None:
        super().__init__()
        self._environment = environment
        self._remote_shell = remote_shell
        interfaces = named_interfaces(environment)
        self.of_interfaces = address_of_interface(interfaces) if interfaces else None

    def find(self, hosts: Sequence[str]) -> None:
        """Finds the addresses for these hosts, so that ranks here use the one that others use."""
        self.update(own_addresses(hosts, self._environment, self._remote_shell))

    def __missing__(self, host: str) -> str:
        if self.of_interfaces:
            self[host] = self.of_interfaces
        else:
            self.find([host])
        return self[host]
