"""The hosts of a campaign, network namespaces that nobody else sees, and its own /dev/shm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

NETLAB = Path(__file__).parents[2] / "scripts/netlab.sh"
#: Bytes of the campaign's own /dev/shm.
SHM = 1 << 30
#: Signals that may end a campaign.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def with_own_shm(size: int, command: Sequence[str]) -> list[str]:
    """Returns the command with a /dev/shm of this many bytes for itself."""
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh", *command]


def enter() -> bool:
    """Executes this program again, in mounts of its own; returns False without root.

    It returns True there.
    """
    if os.geteuid() != 0:
        return False
    if os.environ.get("NETLAB") != _name():
        os.environ["NETLAB"] = _name()
        again = with_own_shm(SHM, [sys.executable, *sys.orig_argv[1:]])
        os.execvp(again[0], again)
    return True


@contextmanager
def hosts(count: int) -> Iterator[None]:
    """Makes so many hosts, after `enter`. A signal must end the program by an exception.

    They are hidden from others: a program that lists all namespaces would fail on those that are
    mounted for this campaign only.
    """
    namespaces = Path("/run/netns")
    namespaces.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(namespaces)], check=True)
    try:
        for command in (["down"], ["up", str(count)]):
            netlab(*command)
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        netlab("down")


def end_orderly() -> None:
    """Lets signals end the campaign by an exception."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, end)


def netlab(*arguments: object) -> None:
    subprocess.run([str(NETLAB), *map(str, arguments)], check=True)


def name_of(host: int) -> str:
    """Returns the name of a host's namespace."""
    return f"{os.environ['NETLAB']}{host}"


def processes_on(host: int) -> list[int]:
    """Returns the processes of a host, but for the one that serves ssh."""
    listed = subprocess.run(
        ["ip", "netns", "pids", name_of(host)], capture_output=True, text=True, check=True
    )
    return [process for process in map(int, listed.stdout.split()) if not _serves_ssh(process)]


def _serves_ssh(process: int) -> bool:
    try:
        return b"[listener]" in Path(f"/proc/{process}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def _name() -> str:
    """Returns the lab's name, which no other campaign has: this process keeps its number when it
    executes itself again. Link names are made from it, and may have 15 characters; the letter at
    the end separates the campaign's number from the host's."""
    return f"c{os.getpid()}h"
