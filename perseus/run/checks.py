"""What the launcher checks before it starts anything, so that a mistake is one line and not one
from every rank. Each check raises ValueError."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from perseus.run.host_connection import RemoteShell
from perseus.run.hosts import is_local


def check_settings(environment: Mapping[str, str]) -> None:
    """Refuses a malformed setting. Loads the engine only if the environment has any settings."""
    if any(name.startswith(("PERSEUS_", "HOROVOD_")) for name in environment):
        import perseus_core

        perseus_core.check_environment(environment)


def working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ValueError(
            "the working directory, in which the ranks would start, has been deleted; change to "
            "one that exists"
        ) from None


def check_remote_shell(shell: RemoteShell, hosts: Iterable[str]) -> None:
    """Refuses a job on other hosts if the command that reaches them is not there."""
    if shutil.which(shell.command[0]):
        return
    if remote := [host for host in hosts if not is_local(host)]:
        raise ValueError(
            f"{shell.command[0]} is needed to reach host {remote[0]}, but there is none on PATH; "
            "install an ssh client, or name another command in PERSEUSRUN_RSH"
        )


def output_folder(name: str) -> Path:
    """Makes the folder for the ranks' output, and checks that files can be made in it."""
    if not name:
        raise ValueError("--output-filename '' names no folder")
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--output-filename: the folder {name} cannot be made: {error.strerror}"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"--output-filename: no file can be made in the folder {name}")
    return folder
