"""Runs a job as a user asks for it; perseusrun and `run` share this."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perseus.run.agent_protocol import THREADS
from perseus.run.call_back import CALL_BACK
from perseus.run.checks import (
    check_files_of_rank_0,
    check_interfaces,
    check_remote_shell,
    check_settings,
    output_folder,
    working_directory,
)
from perseus.run.ending import DEFAULT_GRACE_SECONDS
from perseus.run.environment import exported, first_set, start_timeout
from perseus.run.flag_values import words
from perseus.run.hosts import Host, Slot, assign, is_local
from perseus.run.job import Job
from perseus.run.launcher import Launcher
from perseus.run.master import Master, address_of
from perseus.run.mpi import MpirunOptions, find_mpirun, mpirun_command, mpirun_environment
from perseus.run.mpi_launcher import MpiLauncher
from perseus.run.output import Output, remove_older
from perseus.run.own_streams import tell
from perseus.run.program import check_program, note_on_python
from perseus.run.remote_shell import RemoteShell
from perseus.run.rendezvous import (
    ALLOCATIONS,
    call_back_address,
    named_interfaces,
    own_addresses,
    serve_rendezvous,
)


@dataclass
class Request:
    command: Sequence[str]
    size: int
    hosts: Sequence[Host] = ()  # empty: this one, with room for all
    settings: Mapping[str, str] = field(default_factory=dict)  # more environment for the ranks
    start_timeout: int | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    output_folder: str | None = None
    timestamps: bool = False
    only_rank: int | None = None  # shows the output of this rank alone; None: that of all
    tags: bool = True  # whether lines begin with the rank and the stream
    grace: float = DEFAULT_GRACE_SECONDS  # from SIGTERM to SIGKILL
    verbose: bool = False
    quiet: bool = False  # whether the launcher only speaks of failures
    stdin: bytes = b""  # what every rank reads there
    forwards_stdin: bool = False  # whether rank 0 reads our own stdin instead
    outlives: bool = False  # whether the ranks of an elastic job outlive a launcher that is killed
    mpi: bool = False
    # With mpi only.
    mpi_args: str = ""
    binding_args: str = ""
    tcp: bool = False


def start(request: Request) -> tuple[Launcher, int]:
    """Runs a job to its end; returns its launcher, and its exit status as a shell shows it.

    Raises ValueError if it cannot start: too many ranks, an unknown host, a malformed setting, no
    mpirun.
    """
    slots = assign(request.hosts or [Host("localhost", request.size)], request.size)
    job, environment = prepare(request, slots)
    output = make_output(request, request.size)
    if request.mpi:
        return _run(_mpi_launcher(request, job, output, environment))
    names = [slot.host for slot in slots]
    addresses = own_addresses(names, environment, job.remote_shell)
    several = not all(map(is_local, addresses))
    master = Master(environment, here=is_local(slots[0].host), several_hosts=several)
    if master.note and not request.quiet:
        tell(master.note)
    first = slots[0].host
    address = None if is_local(first) else address_of(first, job.remote_shell)
    job.master = lambda host: master.environment(address or addresses[host])
    with serve_rendezvous(names, job.secret, addresses) as job.rendezvous:
        launcher, status = _run(Launcher(job, output))
    if status and (stranger := master.note_on_stranger()):
        tell(stranger)
    return launcher, status


def prepare(request: Request, slots: Sequence[Slot]) -> tuple[Job, dict[str, str]]:
    """Returns the job, and the environment of its ranks. Raises ValueError if it cannot start."""
    settings = _settings(request)
    environment = {**os.environ, **settings}
    shell = RemoteShell.from_environment(request.ssh_port, request.ssh_identity_file)
    hosts = {slot.host for slot in slots}
    check_settings(environment)
    check_remote_shell(shell, hosts)
    if request.output_folder is not None:
        output_folder(request.output_folder)  # before any note is told
    directory = working_directory()
    # mpirun may find other hosts than this one in an allocation.
    finds_hosts = request.mpi and not request.hosts and first_set(environment, *ALLOCATIONS)
    here = not finds_hosts and any(map(is_local, hosts))
    if here:
        check_program(request.command, environment)
        check_interfaces(named_interfaces(environment) if request.size > 1 else ())
    if here and is_local(slots[0].host):
        check_files_of_rank_0(environment, directory)
    for note in (
        note_on_python(request.command, environment) if here else None,
        note_on_threads(slots, environment),
    ):
        if note and not request.quiet:
            tell(note)
    job = Job(
        command=request.command,
        directory=directory,
        slots=slots,
        secret=secrets.token_hex(32),
        environment=settings,
        remote_shell=shell,
        start_timeout=start_timeout(environment),
        stdin=request.stdin,
        stdin_fd=0 if request.forwards_stdin else None,
        grace=request.grace,
        verbose=request.verbose,
        quiet=request.quiet,
    )
    return job, environment


def make_output(request: Request, size: int, *, appends: bool = False) -> Output:
    """Returns where the output of `size` ranks goes. Raises ValueError for an unusable folder.

    Args:
      appends: adds to what the job has written into the folder before.
    """
    folder = None if request.output_folder is None else output_folder(request.output_folder)
    if folder is not None and not appends:
        remove_older(folder)
    return Output(
        size,
        appends=appends,
        timestamps=request.timestamps,
        folder=folder,
        only_rank=request.only_rank,
        tags=request.tags,
    )


def note_on_threads(slots: Sequence[Slot], environment: Mapping[str, str]) -> str | None:
    """Returns a line for the user if the agents are going to set OMP_NUM_THREADS, else None."""
    # An elastic job may have no host yet.
    most = max((slot.local_size for slot in slots), default=1)
    if most == 1 or THREADS in environment:
        return None
    if all(is_local(slot.host) for slot in slots):
        from perseus_core import processors

        each = processors.share(most, is_shared=True)
        return (
            f"{THREADS} is not set, so each rank gets {each}: the {processors.usable()} processors "
            f"here, divided by the {most} ranks"
        )
    return f"{THREADS} is not set, so each rank gets its host's processors divided by its ranks"


def _run(launcher: Launcher) -> tuple[Launcher, int]:
    return launcher, launcher.run()


def _settings(request: Request) -> dict[str, str]:
    settings = dict(request.settings)
    if request.start_timeout is not None:
        settings["PERSEUS_START_TIMEOUT"] = str(request.start_timeout)
    interfaces = settings.get("PERSEUS_INTERFACES")
    if interfaces:
        # Other libraries must use the same interfaces.
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            settings[name] = os.environ.get(name) or interfaces
    if request.tcp:
        settings["NCCL_IB_DISABLE"] = "1"
    return settings


def _mpi_launcher(
    request: Request, job: Job, output: Output, environment: Mapping[str, str]
) -> MpiLauncher:
    several = any(not is_local(host.name) for host in request.hosts)
    names = [slot.host for slot in job.slots]
    address, listen_on = call_back_address(names, environment, job.remote_shell)
    mpirun = find_mpirun()
    hosts = [host.name for host in request.hosts]
    shell = [*job.remote_shell.command, *job.remote_shell.options(job.start_timeout, hosts)]
    needed = {**environment, CALL_BACK: ""}
    # mpirun would send it in the clear. Ranks on other hosts have their own, or init tells.
    needed.pop("PERSEUS_SECRET", None)
    mpirun_options = MpirunOptions(
        size=request.size,
        hosts=[(host.name, host.slots) for host in request.hosts],
        exported=exported(needed) if several else {**job.environment, CALL_BACK: ""},
        binding=words(request.binding_args, "--binding-args"),
        more=words(request.mpi_args, "--mpi-args"),
        interfaces=named_interfaces(environment),
        tcp=request.tcp,
        remote_shell=shell if several else [],
        root=os.geteuid() == 0,
    )
    return MpiLauncher(
        job,
        output,
        lambda started: mpirun_command(mpirun, mpirun_options, started),
        mpirun_environment(mpirun, mpirun_options),
        address=address,
        listen_on=listen_on,
        is_bound=bool(request.binding_args) or "bind" in request.mpi_args,
    )
