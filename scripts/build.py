"""Builds the engine into the source tree, and installs the tree as an editable package.

Run with the environment's Python.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import toolchain
from debian import ROOT

METADATA = [ROOT / "pyproject.toml", ROOT / "setup.py"]


def build(cmake_args: list[str]) -> None:
    # CMake remembers UNITY in build/dev until it is given again.
    unity = os.environ.get("UNITY")
    chosen = [f"-DCMAKE_UNITY_BUILD={unity}"] if unity else []
    arguments = shlex.join([*toolchain.load().cmake_args, *chosen, *cmake_args])
    environment = {**os.environ, "CMAKE_ARGS": arguments}
    _run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], environment)
    _install_editable(environment)


def _install_editable(environment: dict[str, str]) -> None:
    stamp = Path(sys.prefix) / ".installed-perseus"
    content = hashlib.sha256(b"".join(file.read_bytes() for file in METADATA)).hexdigest()
    if stamp.exists() and stamp.read_text() == content:
        return
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*pip, "--no-deps", "--no-build-isolation", "-e", "."], environment)
    stamp.write_text(content)


def _run(command: list[str], environment: dict[str, str]) -> None:
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    if status != 0:
        sys.exit(f"make: `{shlex.join(command)}` failed; its message is above.")


if __name__ == "__main__":
    build(sys.argv[1:])
