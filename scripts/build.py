"""build.py [--debug]: builds the engine into the source tree, an editable package.

Run with the environment's Python. CMAKE_ARGS adds arguments for CMake, and UNITY chooses whether
sources are compiled alone. Both are remembered in the build's folder until they are given again:
build/dev, or build/debug with --debug. The tree has the engine that was built last.
compile_commands.json, for editors, tells how each source is compiled alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import cpp_build
import toolchain
from debian import ROOT

METADATA = [ROOT / "pyproject.toml", ROOT / "setup.py"]


def build(debug: bool) -> None:
    unity = os.environ.get("UNITY")
    chosen = [f"-DCMAKE_UNITY_BUILD={unity}"] if unity else []
    chosen += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    arguments = shlex.join([*toolchain.load().cmake_args, *chosen])
    environment = {**os.environ, "CMAKE_ARGS": arguments}
    how = ["--inplace", *(["--debug"] if debug else [])]
    _run([sys.executable, "setup.py", "-q", "build_ext", *how], environment)
    _install_editable(environment)
    cpp_build.write_compile_commands()


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--debug", action="store_true", help="not optimised, with assertions")
    build(parser.parse_args().debug)
