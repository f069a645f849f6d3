"""horovodrun from Python."""

from __future__ import annotations

from perseus.run import cli

__all__ = ["check_build", "run_commandline"]


def run_commandline() -> int:
    """Does what the command horovodrun does, with this program's arguments; returns its status."""
    return cli.main()


def check_build(verbose: bool) -> None:
    """Prints the libraries and features found on this machine."""
    cli.check_build()
