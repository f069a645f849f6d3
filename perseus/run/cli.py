"""perseusrun, which starts a command as the ranks of a job."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perseus import dropin
from perseus.run import core_distances, job_commands
from perseus.run.completion import completion_script
from perseus.run.config_file import read_config
from perseus.run.hosts import Host, parse_hosts, read_hostfile
from perseus.run.options import make_parser
from perseus.run.own_streams import discard, reserve_standard_descriptors, tell
from perseus.run.program import command_of_ranks, is_python, note_on_lacking
from perseus.run.setting_options import NOT_FOR_MPIRUN
from perseus.run.start import Request, start

if TYPE_CHECKING:
    from perseus.elastic.options import ElasticOptions
    from perseus.run.launcher import Launcher

#: Says what ranks do if perseusrun is killed, without --if-killed.
IF_KILLED = "PERSEUSRUN_IF_KILLED"
#: The last line of a program that does not find Horovod.
NO_HOROVOD = b"ModuleNotFoundError: No module named 'horovod'"


def main(arguments: Sequence[str] | None = None) -> int:
    reserve_standard_descriptors()
    # The launcher passes these on to the ranks; one that comes before there are any has no effect.
    with contextlib.suppress(ValueError):  # this is not the main thread
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
    parser = make_parser()
    try:
        options = parser.parse_args(arguments)
        if options.version:
            print(f"perseus {version()}", flush=True)
            return 0
        if options.check_build:
            return check_build()
        if options.core_distances:
            return core_distances.show()
        if options.print_completion:
            print(completion_script(options.print_completion), end="", flush=True)
            return 0
        if job_commands.is_asked(options):
            return job_commands.run(
                parser, options, sys.argv[1:] if arguments is None else arguments
            )
        if options.config_file is not None:
            apply_config(parser, options)
        from perseus.elastic import options as elastic

        asked = elastic.elastic_options(options)
        notes = [*options.notes, *notes_about_mpi(options), *elastic.notes_about_elastic(options)]
        for note in notes:
            say(options, note)
        request = make_request(parser, options, is_elastic=asked is not None)
        launcher, status = _start(request, asked)
    except ValueError as error:
        tell(str(error))
        return 2
    except BrokenPipeError:
        # The reader of our output, such as head, has closed it, and the ranks have been ended.
        # Without this, Python would report at exit what it cannot write.
        discard(sys.stdout)
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:  # before ranks were started; afterwards the launcher handles it
        return 128 + signal.SIGINT
    except OSError as error:  # for want of descriptors or processes, for example
        tell(str(error.strerror or error))
        return 1
    if status == 0 or not launcher.is_stderr_read:
        return status
    if note := note_on_lacking(request.command, launcher.last_lines()):
        say(options, note)
    if NO_HOROVOD in launcher.last_lines():
        say(
            options,
            "the program is written for Horovod; with --drop-in, `import horovod` gives Perseus",
        )
    return status


def _start(request: Request, elastic: ElasticOptions | None) -> tuple[Launcher, int]:
    if elastic is None:
        return start(request)
    from perseus.elastic.start import start_elastic

    return start_elastic(request, elastic)


def say(options: argparse.Namespace, note: str) -> None:
    """Says what is good to know, and no error."""
    if not options.quiet:
        tell(note)


def make_request(
    parser: argparse.ArgumentParser, options: argparse.Namespace, *, is_elastic: bool
) -> Request:
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        parser.error("there is nothing to run; for example: perseusrun -np 4 train.py")
    command = command_of_ranks(words, is_module=options.module)
    hosts = named_hosts(options, is_elastic=is_elastic)
    size = options.num_proc or sum(host.slots for host in hosts) or options.least
    if not size:
        late = next((word for word in command if word in ("-np", "--num-proc", "-H")), None)
        hint = f"; {late} comes after the program, and must come before it" if late else ""
        parser.error(f"say how many ranks to start: -np N{hint}")
    if options.only_rank is not None and not 0 <= options.only_rank < size:
        parser.error(f"--only-rank is {options.only_rank}; it must be from 0 to {size - 1}")
    settings = drop_in(command, options) if options.drop_in else {}
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
        only_rank=options.only_rank,
        tags=options.tags,
        grace=options.grace,
        verbose=options.verbose,
        quiet=options.quiet,
        outlives=outlives(options.if_killed),
        mpi=options.mpi,
        mpi_args=options.mpi_args,
        binding_args=options.binding_args,
        tcp=options.tcp,
        forwards_stdin=True,
    )


def outlives(given: str | None) -> bool:
    """Returns whether the ranks of an elastic job go on if perseusrun is killed."""
    what = given or os.environ.get(IF_KILLED) or "go-on"
    if what not in ("go-on", "end"):
        raise ValueError(f"{IF_KILLED} is '{what}'; it must be go-on or end")
    return what == "go-on"


def drop_in(command: Sequence[str], options: argparse.Namespace) -> dict[str, str]:
    """Returns the environment in which `import horovod` gives Perseus; ValueError if it cannot."""
    if shadowed := dropin.shadow(command[1:] if is_python(command[0]) else []):
        raise ValueError(f"--drop-in: {shadowed}")
    settings = dropin.environment(os.environ)
    # The first entry is perseusrun's own folder, or this one: the ranks do not search it.
    if hidden := dropin.hidden_horovod(sys.path[1:]):
        say(options, hidden)
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
            "--tcp sets NCCL_IB_DISABLE=1 and no more: without --mpi, hosts reach each other by TCP"
        )
    return notes


def named_hosts(options: argparse.Namespace, *, is_elastic: bool) -> list[Host]:
    if options.hosts is not None:
        return parse_hosts(options.hosts, distinct=is_elastic)
    if options.hostfile is not None:
        return read_hostfile(options.hostfile, distinct=is_elastic)
    return []


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
    sys.stdout.flush()
    return 0


def version() -> str:
    import perseus_core

    return perseus_core.__version__
