"""environment.py FOLDER GROUP...: makes a virtual environment and installs requirements/GROUP.txt.

A stamp in the environment holds the hash of what was installed, so a second run does nothing. If
there is a requirements/GROUP-no-deps.txt, that is installed without dependencies. At the end,
bytecode is written for what most processes import: without it, the first of them would take seconds
longer, or all of them where Python may not write bytecode.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import debian
import installer
import quick_gc

REQUIREMENTS = debian.ROOT / "requirements"
#: Modules that take longest to import, with what they import.
LARGE = ("mxnet", "tensorflow", "torch._dynamo")


def create(folder: Path) -> None:
    if (folder / "bin/python").exists():
        return
    print(f"make: creating {folder.name} with Python {sys.version.split()[0]}", flush=True)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    # Debian packages ensurepip separately from Python.
    if not importlib.util.find_spec("ensurepip") and os.geteuid() == 0:
        debian.fetch([f"python{version}-venv"])
    if subprocess.run([sys.executable, "-m", "venv", str(folder)]).returncode != 0:
        sys.exit(
            f"make: {sys.executable} cannot make a virtual environment.\n"
            f"make: on Debian or Ubuntu: apt-get install python{version}-venv; then remove "
            f"{folder} and run make again."
        )


def install(folder: Path, *groups: str) -> None:
    installed = [_install_group(folder, group) for group in groups]
    if any(installed):
        _write_bytecode(folder)


def _write_bytecode(folder: Path) -> None:
    variables = {**os.environ}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    importing = [
        # A module may be missing or broken, which is for the tests that need it to say.
        subprocess.Popen(
            [str(folder / "bin/python"), "-c", f"import {module}"],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for module in LARGE
    ]
    for process in importing:
        process.wait()


def _install_group(folder: Path, group: str) -> bool:
    """Returns False if the group had been installed already."""
    listed = [REQUIREMENTS / f"{group}.txt", REQUIREMENTS / f"{group}-no-deps.txt"]
    files = [file for file in listed if file.exists()]
    stamp = folder / f".installed-{group}"
    content = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    if stamp.exists() and stamp.read_text() == content:
        return False
    print(f"make: installing requirements/{group}.txt into {folder.name}", flush=True)
    for file in files:
        options = ["--no-deps"] if file.stem.endswith("-no-deps") else []
        if not installer.install(str(folder / "bin/python"), "-r", str(file), *options):
            sys.exit(
                f"make: could not install requirements/{file.name}; its message is above.\n"
                "make: it needs a package index: check the network, or PIP_INDEX_URL and proxies."
            )
    stamp.write_text(content)
    return True


def of_the_tree(group: str) -> Path:
    """Returns the Python of build/GROUP, which has that group and the Perseus that `make build` put
    into this tree."""
    folder = debian.ROOT / "build" / group
    create(folder)
    install(folder, group)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    (packages / "perseus-tree.pth").write_text(f"{debian.ROOT}\n")
    return folder / "bin/python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("groups", metavar="GROUP", nargs="*", help="a file of requirements/")
    args = parser.parse_args()
    folder = args.folder.resolve()
    create(folder)
    quick_gc.install(folder)
    install(folder, *args.groups)


if __name__ == "__main__":
    main()
