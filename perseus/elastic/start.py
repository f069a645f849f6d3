"""Starts an elastic job as a user asks for it; perseusrun and `run` share this."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from perseus.elastic.discovery import DISCOVERY_SECONDS
from perseus.elastic.launcher import ElasticLauncher
from perseus.elastic.options import ElasticOptions, host_source
from perseus.run.hosts import Host, slots_on
from perseus.run.remote_shell import RemoteShell
from perseus.run.rendezvous import own_addresses, serve_rendezvous
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
    for host in hosts:
        addresses[host.name]
    output = make_output(request, options.most or _MOST_WORKERS)
    with serve_rendezvous((), job.secret, addresses) as job.rendezvous:
        launcher = ElasticLauncher(job, output, options, request.size, source, hosts, interval)
        return launcher, launcher.run()


def _first_hosts(hosts: Sequence[Host], size: int) -> itertools.islice[str]:
    return itertools.islice((host.name for host in hosts for _ in range(host.slots)), size)


class _Addresses(dict[str, str]):
    """The address at which each host reaches this machine, found out when it is asked for."""

    def __init__(self, environment: Mapping[str, str], remote_shell: RemoteShell) -> None:
        super().__init__()
        self._environment = environment
        self._remote_shell = remote_shell

    def __missing__(self, host: str) -> str:
        address = own_addresses([host], self._environment, self._remote_shell)[host]
        self[host] = address
        return address
