"""Builds what `make gpu-check` runs (engine, package, gpu_kernels) with the tools on this machine.

Everything goes into build/gpu, apart from the source tree's own build. Nothing is installed or
fetched.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from debian import ROOT
from find_tool import find_tool

FOLDER = ROOT / "build/gpu"
#: A folder for PYTHONPATH: the packages, with the engine in them.
PACKAGES = FOLDER / "python"
KERNELS = FOLDER / "tests/gpu/gpu_kernels"


class BuildError(Exception):
    """The build cannot be made; the message says what is missing, or what failed."""


def build() -> str:
    """Updates the build; returns what CMake says of the kernels. The tools print to stdout."""
    cmake, ninja = _tool("cmake"), _tool("ninja")
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler.split()[0]):
        raise BuildError(f"there is no {compiler}: a C++20 compiler is needed, g++ 11 or newer")
    configure = [cmake, f"-S{ROOT}", f"-B{FOLDER}", "-GNinja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    configure += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_INSTALL_MESSAGE=NEVER"]
    configure += ["-DCMAKE_INSTALL_LIBDIR=lib", "-DCMAKE_INSTALL_INCLUDEDIR=include"]
    configure += ["-DPERSEUS_BUILD_PYTHON=ON", "-DPERSEUS_BUILD_GPU_CHECK=ON"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-DPython_INCLUDE_DIR={_headers()}"]
    configure += [f"-Dpybind11_DIR={_pybind11()}"]
    words = re.search(r"CUDA kernels: (.*)", _run(configure))
    if not words or ", for sm " not in words[1]:
        raise BuildError(f"CUDA kernels: {words[1] if words else 'CMake says nothing of them'}")
    _run([cmake, "--build", str(FOLDER)])  # everything, as the components hold several targets
    _lay_down_packages()
    for component in ("library", "python"):
        install = [cmake, "--install", str(FOLDER), "--prefix", str(PACKAGES / "perseus_core")]
        _run([*install, "--component", component])
    return words[1]


def _lay_down_packages() -> None:
    shutil.rmtree(PACKAGES, ignore_errors=True)
    built = shutil.ignore_patterns("__pycache__", "lib", "include", "*.so")
    for package in ("perseus", "perseus_core"):
        shutil.copytree(ROOT / package, PACKAGES / package, ignore=built)
    # As pip would do, for programs that ask for the version.
    header = (ROOT / "csrc/include/perseus/perseus.h").read_text()
    version = ".".join(re.findall(r"^#define PERSEUS_VERSION_\w+ (\d+)$", header, re.M))
    metadata = PACKAGES / f"perseus_train-{version}.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: perseus-train\nVersion: {version}\n")


def _tool(name: str) -> str:
    found = find_tool(name)
    if not found:
        raise BuildError(f"there is no {name}, neither beside {sys.executable} nor on PATH")
    return found


def _headers() -> str:
    include = os.environ.get("PERSEUS_PYTHON_INCLUDE") or sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").exists():
        raise BuildError(
            f"the headers of {sys.executable} are missing ({include}/Python.h); "
            "PERSEUS_PYTHON_INCLUDE names their folder where they lie elsewhere"
        )
    return include


def _pybind11() -> str:
    if importlib.util.find_spec("pybind11") is None:
        raise BuildError(f"{sys.executable} has no package pybind11")
    import pybind11

    return pybind11.get_cmake_dir()


def _run(command: list[str]) -> str:
    """Prints the output as it comes, and returns it."""
    lines = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        assert job.stdout
        for line in job.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if job.returncode != 0:
        raise BuildError(f"`{' '.join(command[:3])} ...` failed with {job.returncode}")
    return "".join(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    try:
        print(f"kernels: {build()}")
    except BuildError as error:
        sys.exit(f"gpu-check: {error}")
