"""`run`, which calls a Python function on all ranks of a new job."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle

from perseus.run.ending import DEFAULT_GRACE_SECONDS
from perseus.run.failures import Failure
from perseus.run.hosts import Host, parse_hosts, read_hostfile
from perseus.run.own_streams import tell
from perseus.run.program import NOT_FROM_HERE
from perseus.run.raised import Raised
from perseus.run.received import Received
from perseus.run.setting_options import NO_CACHE, NOT_FOR_MPIRUN
from perseus.run.start import Request, start

if TYPE_CHECKING:
    from perseus.elastic.options import BlacklistBy, ElasticOptions, Join
    from perseus.run.launcher import Launcher

T = TypeVar("T")


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    grace: float = DEFAULT_GRACE_SECONDS,
    elastic_timeout: int | None = None,
    join: Join | None = None,
    blacklist_by: BlacklistBy | None = None,
) -> list[T]:
    """Calls `func(*args, **kwargs)` on every rank of a new job; returns the results in rank order.

    The function is sent by cloudpickle and runs in a new Python process, which must find the
    modules that it imports. The output of the ranks is shown as perseusrun shows it. The arguments
    are Horovod's.

    Args:
      num_proc: ranks to start.
      hosts: "host:slots,host:slots"; this machine by default.
      hostfile: a file of lines `host slots=N`, instead of `hosts`.
      start_timeout: seconds until all ranks must have started and met; PERSEUS_START_TIMEOUT by
        default, else 30.
      ssh_port, ssh_identity_file: for ssh to other hosts.
      output_filename: a folder that also gets the output of rank N, as rank.N/stdout and stderr.
      verbose: show what is started where.
      use_gloo, use_mpi: start the ranks without mpirun, which is the default, or with it.
      mpi_args: more arguments for mpirun.
      network_interfaces: the interfaces that the ranks use, separated by commas.
      executable: the Python that the ranks run in; this one by default.
      environment: more environment variables for the ranks, such as settings.
      grace: seconds between SIGTERM and SIGKILL for the other ranks, when one fails.
      disable_cache: has no effect, because nothing that is learned about hosts is kept.
      np, network_interface: deprecated names of num_proc and network_interfaces.
      min_num_proc, max_num_proc: make the job elastic: it goes on while there are at least so many
        ranks, and gets more, up to the latter, as there are slots for them. The results are those
        of the ranks that are there at the end.
      host_discovery_script: prints the hosts each time, and makes the job elastic. slots: of a host
        for which it prints none.
      reset_limit: how often the ranks of an elastic job may change.
      cooldown_range: the least and the most seconds for which a host that has failed is left out.
      elastic_timeout: how many seconds an elastic job waits for enough slots; 600 by default.
      join: "background", the default, lets the ranks of an elastic job go on until new ones are
        ready; with "at_once" they wait for them, as in Horovod.
      blacklist_by: leaves out the "host" of a rank that fails, or its "slot", which is the default
        with min_num_proc alone.
      min_np, max_np: deprecated names of min_num_proc and max_num_proc.

    Raises ValueError for wrong arguments, and TypeError for arguments of other types. If a rank
    fails, raises RuntimeError, which names the rank; if its function raised an exception, that is
    the cause of the error (`__cause__`). Ctrl-C ends the ranks and raises KeyboardInterrupt.
    """
    from perseus.elastic.arguments import ElasticArguments, check_whole_number

    if hosts and hostfile:
        raise ValueError("hosts and hostfile exclude each other")
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi exclude each other")
    if not 0 <= grace <= 86400:
        raise ValueError(f"grace is {grace}; it must be from 0 to 86400 (seconds)")
    if np is not None:
        num_proc = _renamed("np", np, "num_proc", None if num_proc == 1 else num_proc)
    if min_np is not None:
        min_num_proc = _renamed("min_np", min_np, "min_num_proc", min_num_proc)
    if max_np is not None:
        max_num_proc = _renamed("max_np", max_np, "max_num_proc", max_num_proc)
    if network_interface is not None:
        network_interfaces = _renamed(
            "network_interface", network_interface, "network_interfaces", network_interfaces
        )
    if disable_cache:
        tell(f"disable_cache changes nothing: {NO_CACHE}")
    if mpi_args and not use_mpi:
        tell(f"mpi_args changes nothing: {NOT_FOR_MPIRUN}; pass use_mpi=True")
    check_whole_number("num_proc", num_proc)
    settings = dict(environment or {})
    if network_interfaces:
        settings["PERSEUS_INTERFACES"] = network_interfaces
    elastic = ElasticArguments(
        least=min_num_proc,
        most=max_num_proc,
        script=host_discovery_script,
        slots_per_host=slots,
        timeout=elastic_timeout,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        blacklist_by=blacklist_by,
        join=join,
    ).options(
        size=num_proc,
        names_hosts="hosts" if hosts is not None else "hostfile" if hostfile is not None else None,
        mpi=bool(use_mpi),
    )
    named: list[Host] = []
    if hosts is not None:
        named = parse_hosts(hosts, distinct=elastic is not None)
    elif hostfile is not None:
        named = read_hostfile(hostfile, distinct=elastic is not None)
    request = Request(
        command=[executable or sys.executable, *_task()],
        size=num_proc,
        hosts=named,
        settings=settings,
        start_timeout=start_timeout,
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        output_folder=output_filename,
        grace=grace,
        verbose=bool(verbose),
        stdin=cloudpickle.dumps((func, tuple(args), dict(kwargs or {}))),
        mpi=bool(use_mpi),
        mpi_args=mpi_args or "",
    )
    launcher, results = _run(request, elastic)
    if launcher.interrupted_by == signal.SIGINT:
        raise KeyboardInterrupt
    if launcher.failure:
        raise _error_of(launcher.failure, launcher.results)
    return [_result_of(rank, result) for rank, result in enumerate(results())]


def _run(
    request: Request, elastic: ElasticOptions | None
) -> tuple[Launcher, Callable[[], list[Received]]]:
    """Runs a job; returns its launcher, and what tells the results of its ranks, in order."""
    if elastic is None:
        launcher, _ = start(request)
        return launcher, lambda: [launcher.results[rank] for rank in range(request.size)]
    from perseus.elastic.start import start_elastic

    elastic_launcher, _ = start_elastic(request, elastic)
    return elastic_launcher, lambda: elastic_launcher.results_by_rank


def _result_of(rank: int, sent: Received) -> Any:
    if not sent:
        raise RuntimeError(f"rank {rank} exited with code 0 before its function returned")
    return sent.unpickle()


def _task() -> list[str]:
    """Returns the options by which a Python runs the function.

    It looks for modules in the working folder only if this process does, too: a folder that others
    can write to may hold modules of theirs.
    """
    with contextlib.suppress(FileNotFoundError):  # start() says that the folder is gone
        if any(os.path.abspath(place) == os.getcwd() for place in sys.path):
            return ["-m", "perseus.run.task"]
    run = "import runpy; runpy.run_module('perseus.run.task', run_name='__main__')"
    return ["-c", NOT_FROM_HERE + run]


def _error_of(failure: Failure, results: Mapping[int, Received]) -> RuntimeError:
    """Returns the error for a job that failed, whose cause is the exception of the failed rank."""
    sent = None if failure.rank is None else results[failure.rank]
    try:
        raised = sent.unpickle() if sent else None
    except Exception:  # a result that cannot be unpickled here, of a rank that failed afterwards
        raised = None
    if not isinstance(raised, Raised):
        return RuntimeError(failure.message)
    last_line = raised.text.rstrip().rpartition("\n")[2]
    error = RuntimeError(f"{failure.message}: {last_line}")
    error.__cause__ = raised.exception()
    return error


def _renamed(old: str, value: T, new: str, other: T | None) -> T:
    """Returns the value of an argument that was given under its deprecated name."""
    if other is not None and other != value:
        raise ValueError(f"{old}={value!r} and {new}={other!r}: both name the same; give {new}")
    warnings.warn(f"{old} is deprecated; it is called {new}", DeprecationWarning, stacklevel=3)
    return value
