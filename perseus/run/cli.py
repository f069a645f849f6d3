"""perseusrun, which starts a command as the ranks of a job."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.metadata
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from perseus import dropin
from perseus.run.config_file import read_config
from perseus.run.hosts import Host, parse_hosts, read_hostfile
from perseus.run.output import discard
from perseus.run.program import command_of_ranks
from perseus.run.setting_options import DEST, NOT_FOR_MPIRUN, add_setting_options
from perseus.run.start import Request, start

#: How argparse begins its message about flags that it does not know.
_UNRECOGNIZED = "unrecognized arguments: "
#: The last line of a program that does not find Horovod.
NO_HOROVOD = b"ModuleNotFoundError: No module named 'horovod'"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.version:
        print(f"perseus {version()}")
        return 0
    if options.check_build:
        return check_build()
    try:
        if options.config_file is not None:
            apply_config(parser, options)
        for note in [*options.notes, *notes_about_mpi(options)]:
            print(f"perseusrun: {note}", file=sys.stderr)
        launcher, status = start(make_request(parser, options))
    except ValueError as error:
        print(f"perseusrun: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output, such as head, has closed it, and the ranks have been ended.
        # Without this, Python would report at exit what it cannot write.
        discard(sys.stdout)
        return 128 + signal.SIGPIPE
    if status and NO_HOROVOD in launcher.last_lines():
        print(
            "perseusrun: the program is written for Horovod; with --drop-in, `import horovod` "
            "gives Perseus",
            file=sys.stderr,
        )
    return status


def make_request(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Request:
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        parser.error("there is nothing to run: perseusrun -np 4 train.py")
    command = command_of_ranks(words, is_module=options.module)
    hosts = named_hosts(options)
    size = options.num_proc or sum(host.slots for host in hosts)
    if not size:
        parser.error("say how many ranks to start: -np N")
    if options.least and options.mpi:
        parser.error("--min-np: mpirun ends all ranks when one fails; leave out --mpi")
    if options.least and options.least > size:
        parser.error(f"--min-np {options.least} is more than the {size} ranks that are started")
    settings = drop_in(command) if options.drop_in else {}
    return Request(
        command=command,
        size=size,
        hosts=hosts,
        settings={**options.settings, **settings},
        start_timeout=options.start_timeout,
        ssh_port=options.ssh_port,
        ssh_identity_file=options.ssh_identity_file,
        output_folder=options.output_filename,
        timestamps=options.timestamps,
        verbose=options.verbose,
        least=options.least,
        mpi=options.mpi,
        mpi_args=options.mpi_args,
        binding_args=options.binding_args,
        tcp=options.tcp,
    )


def drop_in(command: Sequence[str]) -> dict[str, str]:
    """Returns the environment in which `import horovod` gives Perseus; ValueError if it cannot."""
    is_python = os.path.basename(command[0]).startswith("python")
    if shadowed := dropin.shadow(command[1:] if is_python else []):
        raise ValueError(f"--drop-in: {shadowed}")
    settings = {"PYTHONPATH": dropin.search_path(os.environ.get("PYTHONPATH"))}
    # The first entry is perseusrun's own folder, or this one: the ranks do not search it.
    if hidden := dropin.hidden_horovod(sys.path[1:]):
        print(f"perseusrun: {hidden}", file=sys.stderr)
        settings[dropin.NOTICE_SHOWN] = "1"
    return settings


def apply_config(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Applies the settings in a file that no flag overrides. Raises ValueError for a bad file."""
    config = read_config(options.config_file)
    from_file = parser.parse_args(config.arguments)
    options.settings = {**from_file.settings, **options.settings}
    options.notes = [*config.notes, *from_file.notes, *options.notes]
    if config.mpi and not options.gloo:
        options.mpi = True


def notes_about_mpi(options: argparse.Namespace) -> list[str]:
    """Returns notes on flags that only have an effect with mpirun."""
    if options.mpi:
        return []
    why = f"changes nothing: {NOT_FOR_MPIRUN}; add --mpi"
    notes = [
        f"{flag} {why}"
        for flag, value in (
            ("--mpi-args", options.mpi_args),
            ("--binding-args", options.binding_args),
        )
        if value
    ]
    if options.tcp:
        notes.append(
            "--tcp sets NCCL_IB_DISABLE=1 and no more: without --mpi, ranks use TCP anyway"
        )
    return notes


def named_hosts(options: argparse.Namespace) -> list[Host]:
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    return read_hostfile(options.hostfile) if options.hostfile is not None else []


def check_build() -> int:
    import perseus_core

    print(f"perseus {version()}")
    for what, found in perseus_core.check_build().items():
        print(f"  {what}: {found}")
    gpus = perseus_core.gpu_support()
    ways = ["by NCCL"] * bool(gpus.nccl) + ["by way of the host"] * bool(gpus.cuda_driver)
    print(f"  tensors on GPUs: {' or '.join(ways) or 'no'}")
    for framework in ("torch", "tensorflow", "mxnet"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            print(f"  {framework}: {importlib.metadata.version(framework)}")
    return 0


def version() -> str:
    return importlib.metadata.version("perseus-train")


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="perseusrun",
        usage="perseusrun -np N [-H host:slots,...] [options] [--] "
        "{script.py | -m module | command} ...",
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
    parser.add_argument(
        "--min-np",
        "--min-num-proc",
        dest="least",
        type=_positive,
        metavar="N",
        help="go on without ranks that fail as long as N are left; those meet anew at their next "
        "init()",
    )
    parser.add_argument(
        "-m",
        "--module",
        action="store_true",
        help="what follows is a Python module and its arguments, as with python -m",
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts, and how many ranks each can run",
    )
    hosts.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="a file of lines `host slots=N`"
    )
    launchers = parser.add_mutually_exclusive_group()
    launchers.add_argument(
        "--mpi", action="store_true", help="start the ranks with mpirun (Open MPI or MPICH)"
    )
    launchers.add_argument(
        "--gloo", action="store_true", help="start the ranks without mpirun (the default)"
    )
    parser.add_argument(
        "--drop-in",
        action="store_true",
        help="`import horovod` gives Perseus in the ranks' Python programs",
    )
    parser.add_argument("--mpi-args", default="", metavar="ARGS", help="more arguments for mpirun")
    parser.add_argument(
        "--binding-args", default="", metavar="ARGS", help="mpirun's arguments for binding ranks"
    )
    parser.add_argument(
        "--tcp", action="store_true", help="with --mpi: MPI uses TCP only; NCCL_IB_DISABLE=1"
    )
    parser.add_argument(
        "--start-timeout",
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
    parser.add_argument(
        "--config-file", metavar="FILE", help="settings in YAML, as Horovod has them (needs PyYAML)"
    )
    parser.add_argument("--verbose", action="store_true", help="say what is started where")
    add_setting_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


class _Parser(argparse.ArgumentParser):
    """Adds the engine's table of settings to the help, for which alone it loads the engine.

    For a mistyped flag, it names the one that is most like it.
    """

    def error(self, message: str) -> NoReturn:
        flag = message.removeprefix(_UNRECOGNIZED).split("=")[0].split()[0]
        if message.startswith(_UNRECOGNIZED) and flag.startswith("-"):
            near = difflib.get_close_matches(flag, self._option_string_actions, 1)
            message = f"there is no flag {flag}" + (f"; did you mean {near[0]}?" if near else "")
        super().error(message)

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
