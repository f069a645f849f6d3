"""horovodrun: from Python, as a command, and as `python -m horovod.runner.launch`."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perseus.common.util import gloo_built, mpi_built
from perseus.dropin import HOROVOD_VERSION
from perseus.dropin.runner.arguments import command_line, parse_args
from perseus.run import cli
from perseus.run.api import run
from perseus.run.options import make_parser

__all__ = [
    "_run",
    "_run_elastic",
    "check_build",
    "gloo_built",
    "is_gloo_used",
    "mpi_built",
    "parse_args",
    "run_commandline",
]

#: Programs look for these words of Horovod's.
_FAILED = "Horovod detected that one or more processes exited with non-zero status"

#: Arguments of HorovodArgs that horovod.run takes, too.
_OF_RUN = (
    *("num_proc", "min_num_proc", "max_num_proc", "slots", "reset_limit", "cooldown_range"),
    *("hosts", "hostfile", "host_discovery_script", "start_timeout", "ssh_port"),
    *("ssh_identity_file", "disable_cache", "output_filename", "verbose", "use_gloo", "use_mpi"),
    *("mpi_args", "executable"),
)


def run_commandline() -> int:
    """Does what the command horovodrun does, with this program's arguments; returns its status.

    `import horovod` gives Perseus in the ranks.
    """
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-v", "--version"):
        print(HOROVOD_VERSION, flush=True)
        return 0
    return cli.main(["--drop-in", *arguments])


def _run(args: Any) -> list[Any] | None:
    """Launches what a HorovodArgs says: its function, whose results it returns, or its command.

    Raises RuntimeError if the job fails.
    """
    if _is_elastic(args):
        return _run_elastic(args)
    if getattr(args, "run_func", None) is not None:
        return _run_function(args)
    command: Sequence[str] = args.command or []
    status = cli.main(["--drop-in", *command_line(args), "--", *command])
    if status:
        raise RuntimeError(f"horovodrun {shlex.join(command)}: the job ended with status {status}")
    return None


def _is_elastic(args: Any) -> bool:
    names = ("host_discovery_script", "min_num_proc")
    return any(getattr(args, name, None) is not None for name in names)


def _run_elastic(args: Any) -> list[Any] | None:
    """Launches an elastic job as `_run` does, by Horovod's rules, even if `args` asks for none.

    New ranks are waited for as soon as there is a slot for them, and a host is left out as a whole.
    Raises RuntimeError if the job fails.
    """
    from perseus.dropin.runner.elastic import driver
    from perseus.elastic.options import elastic_options
    from perseus.elastic.start import start_elastic

    timeout = driver.seconds_to_wait(getattr(args, "elastic_timeout", None))
    if getattr(args, "run_func", None) is not None:
        try:
            return _run_function(args, is_elastic=True, elastic_timeout=timeout)
        except RuntimeError as error:
            raise RuntimeError(f"{_FAILED}: {error}") from error.__cause__
    parser = make_parser()
    options = parser.parse_args(["--drop-in", *command_line(args), "--", *(args.command or [])])
    asked = elastic_options(options, always=True)
    request = cli.make_request(parser, options, is_elastic=True)
    launcher, _ = start_elastic(
        request,
        replace(
            asked,
            timeout=timeout,
            join="at_once",
            blacklist_by="host",
        ),
        interval=lambda: driver.DISCOVER_HOSTS_FREQUENCY_SECS,
    )
    if launcher.interrupted_by == signal.SIGINT:
        raise KeyboardInterrupt
    if launcher.failure:
        raise RuntimeError(f"{_FAILED}: {launcher.failure.message}")
    return None


def _run_function(
    args: Any, *, is_elastic: bool = False, elastic_timeout: int | None = None
) -> list[Any]:
    given = {name: getattr(args, name, None) for name in _OF_RUN}
    nics = getattr(args, "nics", None)
    if nics:
        given["network_interfaces"] = nics if isinstance(nics, str) else ",".join(sorted(nics))
    if is_elastic:
        given["min_num_proc"] = given["min_num_proc"] or given["num_proc"]
        given |= {"elastic_timeout": elastic_timeout, "join": "at_once", "blacklist_by": "host"}
    return run(args.run_func, **{name: v for name, v in given.items() if v is not None})


def is_gloo_used(
    use_gloo: bool | None = None, use_mpi: bool | None = None, use_jsrun: bool | None = None
) -> bool:
    """Returns whether such a job's ranks meet without MPI, which is the default here."""
    return bool(use_gloo) or not (use_mpi or use_jsrun)


def check_build(verbose: bool) -> None:
    """Prints the libraries and features found on this machine."""
    cli.check_build()


if __name__ == "__main__":
    sys.exit(run_commandline())
