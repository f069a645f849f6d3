"""perseusrun: starts a command as the ranks of a job."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import secrets
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from perseus.dropin import search_path
from perseus.run.agent import CALL_BACK
from perseus.run.environment import exported, start_timeout
from perseus.run.host_connection import RemoteShell
from perseus.run.hosts import Host, assign, is_local, parse_hosts, read_hostfile
from perseus.run.job import Job, Launcher
from perseus.run.mpi import MpiJob, find_mpirun, mpirun_command, mpirun_environment
from perseus.run.mpi_launcher import MpiLauncher
from perseus.run.output import Output
from perseus.run.rendezvous import call_back_address, serve_rendezvous
from perseus.run.setting_options import DEST, add_setting_options


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.version:
        print(f"perseus {version()}")
        return 0
    if options.check_build:
        return check_build()
    if not options.mpi:
        for flag in ("mpi_args", "binding_args", "tcp"):
            if getattr(options, flag):
                name = f"--{flag.replace('_', '-')}"
                options.notes.append(f"{name} changes nothing: it is for mpirun; add --mpi")
    for note in options.notes:
        print(f"perseusrun: {note}", file=sys.stderr)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("there is no command to run: perseusrun -np 4 python train.py")
    if options.drop_in:
        options.settings["PYTHONPATH"] = search_path(os.environ.get("PYTHONPATH"))
    if options.start_timeout is not None:
        options.settings["PERSEUS_START_TIMEOUT"] = str(options.start_timeout)
    try:
        hosts = named_hosts(options)
        size = options.num_proc or sum(host.slots for host in hosts or [])
        if not size:
            parser.error("say how many ranks to start: -np N")
        if options.mpi:
            return run_with_mpi(options, hosts, size, command)
        return run(options, hosts or [Host("localhost", size)], size, command)
    except ValueError as error:
        print(f"perseusrun: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace, hosts: Sequence[Host], size: int, command: list[str]) -> int:
    slots = assign(hosts, size)
    secret = secrets.token_hex(32)
    environment = {**os.environ, **options.settings}
    shell = RemoteShell.from_environment(options.ssh_port, options.ssh_identity_file)
    output = make_output(options, size)
    names = [slot.host for slot in slots]
    with serve_rendezvous(names, secret, environment, shell) as rendezvous:
        job = Job(
            command=command,
            slots=slots,
            secret=secret,
            rendezvous=rendezvous,
            environment=options.settings,
            remote_shell=shell,
            start_timeout=start_timeout(environment),
            verbose=options.verbose,
        )
        return Launcher(job, output).run()


def run_with_mpi(
    options: argparse.Namespace, hosts: Sequence[Host] | None, size: int, command: list[str]
) -> int:
    slots = assign(hosts or [Host("localhost", size)], size)
    environment = {**os.environ, **options.settings, CALL_BACK: ""}
    several = any(not is_local(host.name) for host in hosts or [])
    shell = RemoteShell.from_environment(options.ssh_port, options.ssh_identity_file)
    seconds = start_timeout(environment)
    address, listen_on = call_back_address([slot.host for slot in slots], environment, shell)
    mpirun = find_mpirun()
    mpi_job = MpiJob(
        size=size,
        hosts=[(host.name, host.slots) for host in hosts or []],
        exported=exported(environment) if several else {**options.settings, CALL_BACK: ""},
        binding=shlex.split(options.binding_args),
        more=shlex.split(options.mpi_args),
        tcp=options.tcp,
        remote_shell=[*shell.command, *shell.options(seconds)] if several else [],
        root=os.geteuid() == 0,
    )
    job = Job(
        command=command,
        slots=slots,
        secret="",
        environment=options.settings,
        start_timeout=seconds,
        verbose=options.verbose,
    )
    launcher = MpiLauncher(
        job,
        make_output(options, size),
        lambda started: mpirun_command(mpirun, mpi_job, started),
        mpirun_environment(mpirun, mpi_job),
        address=address,
        listen_on=listen_on,
    )
    return launcher.run()


def make_output(options: argparse.Namespace, size: int) -> Output:
    folder = Path(options.output_filename) if options.output_filename else None
    return Output(size, timestamps=options.timestamps, folder=folder)


def named_hosts(options: argparse.Namespace) -> list[Host] | None:
    if options.hosts:
        return parse_hosts(options.hosts)
    return read_hostfile(options.hostfile) if options.hostfile else None


def check_build() -> int:
    import perseus_core

    print(f"perseus {version()}")
    for what, found in perseus_core.check_build().items():
        print(f"  {what}: {found}")
    for framework in ("torch", "tensorflow", "mxnet"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            print(f"  {framework}: {importlib.metadata.version(framework)}")
    return 0


def version() -> str:
    return importlib.metadata.version("perseus")


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="perseusrun",
        usage="perseusrun -np N [-H host:slots,...] [options] [--] command...",
        description="Starts a command as the N ranks of a job, here or on other hosts.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(notes=[], **{DEST: {}})
    parser.add_argument("-v", "--version", action="store_true", help="show the version, and exit")
    parser.add_argument("-np", "--num-proc", type=_positive, metavar="N", help="ranks to start")
    parser.add_argument(
        "-cb", "--check-build", action="store_true", help="show what could be found here, and exit"
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts, and ranks that fit")
    hosts.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="a file of lines `host slots=N`"
    )
    launchers = parser.add_mutually_exclusive_group()
    launchers.add_argument(
        "--mpi", action="store_true", help="start the ranks with mpirun (Open MPI or MPICH)"
    )
    launchers.add_argument(
        "--gloo", action="store_true", help="start them without, as is done by default"
    )
    parser.add_argument(
        "--drop-in",
        action="store_true",
        help="`import horovod` gives Perseus in the ranks' Python programs",
    )
    parser.add_argument("--mpi-args", default="", metavar="ARGS", help="more arguments for mpirun")
    parser.add_argument(
        "--binding-args", default="", metavar="ARGS", help="mpirun's, to bind ranks to processors"
    )
    parser.add_argument("--tcp", action="store_true", help="with --mpi: MPI uses TCP only")
    parser.add_argument(
        "--start-timeout",
        "--gloo-timeout-seconds",
        type=_positive,
        metavar="S",
        help="seconds until all ranks must have started and met (PERSEUS_START_TIMEOUT)",
    )
    parser.add_argument("-p", "--ssh-port", type=_positive, metavar="PORT", help="port of sshd")
    parser.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    parser.add_argument(
        "--output-filename",
        metavar="FOLDER",
        help="keep what rank N prints in FOLDER/rank.N/stdout and stderr, too",
    )
    parser.add_argument(
        "-prefix-timestamp",
        "--prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="timestamps",
        action="store_true",
        help="lines begin with the time",
    )
    parser.add_argument("--verbose", action="store_true", help="say what is started where")
    add_setting_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


class _Parser(argparse.ArgumentParser):
    """Adds the engine's table of settings to the help, and loads the engine only then."""

    def format_help(self) -> str:
        return f"{super().format_help()}\n{settings_table()}"


def settings_table() -> str:
    import perseus_core

    lines = ["environment variables that the ranks read:"]
    for setting in perseus_core.settings():
        limits = f"{setting.range}, " if setting.range else ""
        default = setting.default or "empty"
        lines.append(f"  {setting.name} ({setting.type}, {limits}default {default})")
        also = f" Also: {', '.join(setting.aliases)}." if setting.aliases else ""
        indent = " " * 6
        text = setting.help + also
        lines += textwrap.wrap(text, 92, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines) + "\n"


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number
