"""horovodrun from Python."""

from __future__ import annotations

from perseus.run import cli

__all__ = ["check_build", "run_commandline"]


def run_commandline() -> int:
    """What the command horovodrun does, with the arguments of this program; its exit status."""
    return cli.main()


def check_build(verbose: bool) -> None:
    """Prints what could be found here."""
    cli.check_build()
