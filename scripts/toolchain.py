"""Finds what pip cannot install: a C++20 compiler, Python's headers, and GoogleTest.

`load()` finds them, fetches what is missing where it can, and caches the answer in build/.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

import debian

REMEMBERED = debian.ROOT / "build/toolchain.json"

CXX20 = """
#include <coroutine>
#if __cplusplus < 202002L
#error "not C++20"
#endif
int main() { return std::coroutine_handle<>() ? 1 : 0; }
"""
GOOGLETEST = "#include <gtest/gtest.h>\nint main() { testing::InitGoogleTest(); }\n"


@dataclass
class Toolchain:
    compiler: str
    python: str
    googletest: bool
    cmake_args: list[str]


def load() -> Toolchain:
    compiler = os.environ.get("CXX", "c++")
    if REMEMBERED.exists():
        known = Toolchain(**json.loads(REMEMBERED.read_text()))
        # If GoogleTest was missing, look again: somebody may have installed it meanwhile.
        if known.googletest and known.compiler == compiler and known.python == sys.executable:
            return known
    _check_compiler(compiler)
    headers = _python_headers()
    googletest, found = _googletest(compiler)
    toolchain = Toolchain(compiler, sys.executable, googletest, headers + found)
    REMEMBERED.parent.mkdir(exist_ok=True)
    REMEMBERED.write_text(json.dumps(asdict(toolchain), indent=2))
    return toolchain


def _compiles(compiler: str, source: str, *arguments: str) -> tuple[bool, str]:
    command = [*shlex.split(compiler), "-std=c++20", "-x", "c++", "-", "-o", os.devnull, *arguments]
    try:
        result = subprocess.run(command, input=source, capture_output=True, text=True)
    except FileNotFoundError:
        return False, f"{command[0]}: not found"
    return result.returncode == 0, result.stderr


def _check_compiler(compiler: str) -> None:
    good, output = _compiles(compiler, CXX20)
    if not good:
        first = next((line for line in output.splitlines() if line.strip()), "no output")
        sys.exit(
            f"make: {compiler} cannot compile C++20: {first}\n"
            "make: Perseus needs g++ 11 or clang++ 14, or newer.\n"
            "make: on Debian or Ubuntu: apt-get install g++; or name another: make CXX=/path/to/c++"
        )


def _python_headers() -> list[str]:
    include = Path(sysconfig.get_paths()["include"])
    if (include / "Python.h").exists():
        return []
    package = f"libpython{include.name.removeprefix('python')}-dev"
    header = Path(debian.fetch([package]) or "/usr") / "include" / include.name
    if not (header / "Python.h").exists():
        sys.exit(
            f"make: the headers of {sys.executable} are missing ({include}/Python.h).\n"
            f"make: on Debian or Ubuntu: apt-get install {package}"
        )
    # Debian's pyconfig.h includes <architecture/pythonX.Y/pyconfig.h>, relative to include/.
    return [f"-DPython_INCLUDE_DIR={header}", f"-DCMAKE_CXX_FLAGS=-isystem{header.parent}"]


def _googletest(compiler: str) -> tuple[bool, list[str]]:
    libraries = ["-lgtest", "-lpthread"]
    if _compiles(compiler, GOOGLETEST, *libraries)[0]:
        return True, []
    prefix = debian.fetch(["libgtest-dev", "googletest"])
    if prefix == "/usr":
        return _compiles(compiler, GOOGLETEST, *libraries)[0], []
    return prefix is not None, [f"-DCMAKE_PREFIX_PATH={prefix}"] if prefix else []
