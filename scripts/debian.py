"""Fetches Debian packages for the build: installs them as root, else unpacks into build/debian."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNPACKED = ROOT / "build/debian"


#: This variable is set where nothing may be skipped because a package is missing, as in CI.
NO_SKIP = "NO_SKIP"


def skipped(what: str, why: str) -> int:
    """Prints that something is skipped; returns the exit status for it."""
    print(f"make: {what} SKIPPED: {why}", flush=True)
    return 1 if os.environ.get(NO_SKIP) else 0


def fetch(packages: list[str], unpack: bool = True) -> str | None:
    """Fetches packages; returns the prefix that they lie under, or None if that fails.

    Without `unpack`, it fails if the packages cannot be installed.
    """
    if not shutil.which("apt-get"):
        return None
    print(f"make: fetching {' '.join(packages)} from the system's package archive", flush=True)
    UNPACKED.mkdir(parents=True, exist_ok=True)
    # Parts of CI that run at once may both fetch packages.
    with (UNPACKED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.geteuid() == 0 and _install(packages):
            return "/usr"
        return str(UNPACKED / "usr") if unpack and _unpack(packages) else None


def _install(packages: list[str]) -> bool:
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends"]
    install += ["-o", "DPkg::Lock::Timeout=300", *packages]
    # The list of packages may be absent or out of date on a fresh machine.
    return _run(install) or (_run(["apt-get", "update", "-q"]) and _run(install))


def _unpack(packages: list[str]) -> bool:
    archives = UNPACKED / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    return _run(["apt-get", "download", "-q", *packages], cwd=archives) and all(
        _run(["dpkg", "-x", str(archive), str(UNPACKED)]) for archive in archives.glob("*.deb")
    )


def missing(package: str) -> list[str]:
    """Returns the package, and those of the packages that it depends on which are not installed."""
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    listing = _output("apt-cache", "depends", "--recurse", *(f"--no-{k}" for k in kinds), package)
    # Other lines are indented, or name a virtual package.
    needed = {line for line in listing.splitlines() if line[:1].isalnum()}
    installed = {name.partition(":")[0] for name in _output("dpkg-query", "-W").split()}
    return sorted({package, *needed} - installed)


def _output(*command: str) -> str:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


def _run(command: list[str], cwd: Path | None = None) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    result = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode != 0:
        print(f"make: {' '.join(command[:2])} failed: {result.stdout.strip().splitlines()[-1:]}")
    return result.returncode == 0
