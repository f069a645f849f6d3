"""Starts an elastic job as a user asks for it; perseusrun and `run` share this."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from perseus.elastic.dead_jobs import remove_remains
from perseus.elastic.discovery import DISCOVERY_SECONDS, HostSource, find_first
from perseus.elastic.job_record import Agent, JobRecord, SavedJob
from perseus.elastic.launcher import ElasticJob, ElasticLauncher
from perseus.elastic.options import ElasticOptions, host_source
from perseus.elastic.resumed_launcher import ResumedLauncher
from perseus.elastic.sources import FixedSource
from perseus.elastic.torch_places import TorchPlaces
from perseus.run.hosts import Host, slots_on
from perseus.run.network import address_of_interface
from perseus.run.own_streams import tell
from perseus.run.remote_shell import RemoteShell
from perseus.run.rendezvous import named_interfaces, own_addresses, serve_rendezvous
from perseus.run.start import Request, make_output, prepare

__all__ = ["resume_elastic", "start_elastic", "take_environment"]

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
    source = host_source(options, request.hosts, request.size)
    hosts = find_first(source)
    remove_remains()
    with _prepared(request, options, source, hosts) as elastic:
        record = None
        if request.outlives:
            try:
                record = JobRecord.make(elastic.job.secret, request, options)
            except OSError as error:
                tell(f"the ranks will not outlive this perseusrun if it is killed: {error}")
        launcher = ElasticLauncher(elastic, record, interval)
        return launcher, launcher.run()


def resume_elastic(
    saved: SavedJob, record: JobRecord, agents: Sequence[Agent], before: Mapping[str, Any]
) -> tuple[ElasticLauncher, int]:
    """Runs a job to its end whose launcher was killed; returns its launcher, and its exit status.

    This process gets the environment and the directory of that launcher.

    Args:
      record: holds the lock of the job.
      before: what the driver before has written down.

    Raises ValueError if it cannot start.
    """
    take_environment(saved)
    try:
        os.chdir(saved.directory)
    except OSError as error:
        raise ValueError(f"{saved.directory}: {error.strerror}") from None
    request, options = saved.request, saved.options
    source = host_source(options, request.hosts, request.size)
    # The next look for hosts tells if they have changed since.
    hosts = [Host(name, slots) for name, slots in before["table"]["found"].items()]
    hosts = hosts or [Host(agent.host, len(agent.ranks)) for agent in agents]
    with _prepared(request, options, source, hosts, saved.secret) as elastic:
        launcher = ResumedLauncher(elastic, record, agents, before)
        return launcher, launcher.run()


def take_environment(saved: SavedJob) -> None:
    """Gives this process the environment of a job's first launcher."""
    os.environ.clear()
    os.environ.update(saved.environment)


@contextlib.contextmanager
def _prepared(
    request: Request,
    options: ElasticOptions,
    source: HostSource,
    hosts: Sequence[Host],
    secret: str | None = None,
) -> Iterator[ElasticJob]:
    """Yields what a launcher needs, while a rendezvous is served.

    Args:
      secret: of a job that runs already.
    """
    job, environment = prepare(request, slots_on(list(_first_hosts(hosts, request.size))))
    job.secret = secret or job.secret
    addresses = _Addresses(environment, job.remote_shell)
    listen_on = _listen_on(source, [host.name for host in hosts], addresses)
    output = make_output(request, options.most or _MOST_WORKERS, appends=secret is not None)
    with serve_rendezvous((), job.secret, addresses, listen_on=listen_on) as job.rendezvous:
        places = TorchPlaces(addresses, job.remote_shell)
        yield ElasticJob(job, output, options, request.size, source, hosts, places)


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
