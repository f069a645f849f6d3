"""`run`: calls a Python function as the ranks of a job."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle

from perseus.run.environment import start_timeout as seconds_to_start
from perseus.run.host_connection import RemoteShell
from perseus.run.hosts import Host, assign, parse_hosts, read_hostfile
from perseus.run.job import Job, Launcher
from perseus.run.output import Output
from perseus.run.rendezvous import serve_rendezvous

T = TypeVar("T")


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    output_filename: str | None = None,
    environment: Mapping[str, str] | None = None,
    verbose: bool = False,
) -> list[T]:
    """Calls `func(*args, **kwargs)` on every rank of a new job and gives the results in rank order.

    The function travels by cloudpickle and runs in a fresh Python, which must find the modules that
    it imports. What ranks print is shown as by perseusrun.

    Args:
      num_proc: ranks to start (`np` is the same); all slots of the hosts by default, else 1.
      hosts: "host:slots,host:slots"; this machine by default.
      hostfile: a file of lines `host slots=N`, instead of `hosts`.
      start_timeout: seconds until all ranks must have started and met; PERSEUS_START_TIMEOUT by
        default, else 30.
      environment: more environment variables for the ranks, such as settings.

    Raises ValueError for wrong arguments, RuntimeError naming the rank if one fails.
    """
    if hosts and hostfile:
        raise ValueError("hosts and hostfile exclude each other")
    named = parse_hosts(hosts) if hosts else read_hostfile(hostfile) if hostfile else None
    size = num_proc or np or (sum(host.slots for host in named) if named else 1)
    slots = assign(named or [Host("localhost", size)], size)
    secret = secrets.token_hex(32)
    output = Output(size, folder=Path(output_filename) if output_filename else None)
    settings = dict(environment or {})
    if start_timeout is not None:
        settings["PERSEUS_START_TIMEOUT"] = str(start_timeout)
    whole = {**os.environ, **settings}
    shell = RemoteShell.from_environment(ssh_port, ssh_identity_file)
    names = [slot.host for slot in slots]
    with serve_rendezvous(names, secret, whole, shell) as rendezvous:
        job = Job(
            command=[sys.executable, "-m", "perseus.run.task"],
            slots=slots,
            secret=secret,
            rendezvous=rendezvous,
            environment=settings,
            remote_shell=shell,
            start_timeout=seconds_to_start(whole),
            stdin=cloudpickle.dumps((func, tuple(args), dict(kwargs or {}))),
            verbose=verbose,
        )
        launcher = Launcher(job, output)
        launcher.run()
    if launcher.failure:
        raise RuntimeError(launcher.failure.message)
    return [cloudpickle.loads(launcher.results[slot.rank]) for slot in slots]
