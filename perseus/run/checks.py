"""What the launcher checks before it starts anything, so that a mistake is one line and not one
from every rank. Each check raises ValueError."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from perseus.run.hosts import is_local
from perseus.run.own_file import NotOwnError, open_folder
from perseus.run.port_holder import holder_of_port, name_of_user
from perseus.run.remote_shell import RemoteShell

#: Settings, and Horovod's names for them, that name a file which rank 0 writes.
_FILES_OF_RANK_0 = (
    "PERSEUS_TIMELINE",
    "HOROVOD_TIMELINE",
    "PERSEUS_TUNING_LOG",
    "HOROVOD_AUTOTUNE_LOG",
)


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
    remote = [host for host in hosts if not is_local(host)]
    if not remote:
        return
    if not shutil.which(shell.command[0]):
        raise ValueError(
            f"{shell.command[0]} is needed to reach host {remote[0]}, but there is none on PATH; "
            "install an ssh client, or name another command in PERSEUSRUN_RSH"
        )
    if shell.identity_file and not os.path.isfile(os.path.expanduser(shell.identity_file)):
        raise ValueError(f"there is no identity file {shell.identity_file} for ssh")


def check_interfaces(names: Iterable[str]) -> None:
    """Refuses interfaces that this host, on which ranks are to run, does not have."""
    there = sorted(name for _, name in socket.if_nameindex())
    for name in names:
        if name not in there:
            raise ValueError(
                f"PERSEUS_INTERFACES names '{name}', which does not exist here; interfaces "
                f"present: {', '.join(there)}"
            )


def check_files_of_rank_0(environment: Mapping[str, str], directory: str) -> None:
    """Refuses settings that name a file in a folder that is not there, on rank 0's host."""
    for name in _FILES_OF_RANK_0:
        folder = os.path.dirname(os.path.join(directory, environment.get(name, "")))
        if not os.path.isdir(folder):
            raise ValueError(
                f"{name} is '{environment[name]}', whose folder does not exist; make it first"
            )


def note_on_master_port(text: str) -> str | None:
    """Returns a line for the user if rank 0 of torch.distributed could not listen at this port of
    this host, else None. The program may not use torch.distributed, so it is no error.
    """
    if not text.isdecimal() or not 0 < int(text) < 65536:
        return f"MASTER_PORT is '{text}'; it must be a port from 1 to 65535"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(text)))
        except OSError as error:
            holder = holder_of_port(int(text))
            by = "" if holder is None else f", by {name_of_user(holder)}"
            return (
                f"MASTER_PORT is {text}, where torch.distributed cannot listen: {error.strerror}"
                f"{by}; perseusrun finds a free port if it is not set"
            )
    return None


def output_folder(name: str) -> Path:
    """Makes the folder for the ranks' output, and checks that files can be made in it."""
    if not name:
        raise ValueError("--output-filename '' names no folder")
    folder = Path(name)
    try:
        fd = open_folder(folder, makes=True)
    except NotOwnError as error:
        raise ValueError(f"--output-filename: {error.strerror}") from None
    except OSError as error:
        raise ValueError(
            f"--output-filename: the folder {name} cannot be made: {error.strerror}"
        ) from None
    try:
        _check_places(folder, fd)
    finally:
        os.close(fd)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(bytes(4096))  # a full disk may still have room for a name
    except OSError as error:
        raise ValueError(
            f"--output-filename: no file can be written in the folder {name}: {error.strerror}"
        ) from None
    return folder


def _check_places(folder: Path, fd: int) -> None:
    """Refuses a folder in which somebody else has made a place for a rank's output."""
    for name in os.listdir(fd):
        if not name.startswith("rank."):
            continue
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
            raise ValueError(
                f"--output-filename: {folder / name} belongs to another user, or is a link to "
                "elsewhere; name a folder of your own, in which nobody else decides what is "
                "written where"
            )
