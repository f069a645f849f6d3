"""horovodrun: from Python, as a command, and as `python -m horovod.runner.launch`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from perseus.common.util import gloo_built, mpi_built
from perseus.dropin import HOROVOD_VERSION
from perseus.dropin.runner.arguments import command_line
from perseus.run import cli
from perseus.run.api import run

__all__ = ["_run", "check_build", "gloo_built", "is_gloo_used", "mpi_built", "run_commandline"]

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
    if getattr(args, "run_func", None) is not None:
        given = {name: getattr(args, name, None) for name in _OF_RUN}
        nics = getattr(args, "nics", None)
        if nics:
            given["network_interfaces"] = nics if isinstance(nics, str) else ",".join(sorted(nics))
        return run(args.run_func, **{name: v for name, v in given.items() if v is not None})
    command: Sequence[str] = args.command or []
    status = cli.main(["--drop-in", *command_line(args), "--", *command])
    if status:
        raise RuntimeError(f"horovodrun {shlex.join(command)}: the job ended with status {status}")
    return None


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
