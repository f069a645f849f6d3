"""Builds the C++ tests with CMake: in build/dev, or for another purpose in a folder named after it.

The purpose debug is not optimised and has assertions; `make debug` puts its engine into the tree.
The purposes address and thread are the sanitizers. With AddressSanitizer, clang++ takes half of
g++'s time; it also has libFuzzer, so build/address then holds the programs of tests/fuzz. The
purpose alone compiles each source by itself, without a precompiled header, and so fails where a
source does not include what it uses.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import debian
import toolchain

PROBE = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'


def folder(purpose: str) -> Path:
    return debian.ROOT / "build" / (purpose or "dev")


@cache
def fuzzing_compiler() -> str | None:
    """Returns a clang++ that has libFuzzer, and fetches it if necessary and possible."""
    for attempt in range(2):
        for name in ("clang++", *(f"clang++-{version}" for version in range(20, 13, -1))):
            path = shutil.which(name)
            command = [path or "", "-x", "c++", "-", "-fsanitize=fuzzer", "-o", os.devnull]
            if path and subprocess.run(command, input=PROBE, text=True).returncode == 0:
                return path
        if attempt == 0 and debian.fetch(["clang", "libclang-rt-14-dev"]) is None:
            break
    return None


def _configuration(purpose: str) -> list[str]:
    found = toolchain.load()
    arguments = [f"-DPERSEUS_BUILD_TESTS={'ON' if found.googletest else 'OFF'}"]
    arguments += [f"-DPython_EXECUTABLE={sys.executable}", *found.cmake_args]
    if not purpose:
        return arguments
    if purpose == "debug":
        return [*arguments, "-DCMAKE_BUILD_TYPE=Debug"]
    if purpose == "alone":
        arguments += ["-DCMAKE_UNITY_BUILD=OFF", "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON"]
        return [*arguments, "-DCMAKE_CXX_FLAGS_RELEASE=-O0", "-DCUDACXX=OFF"]
    # -O1 -g1 halves the build time and keeps line numbers. No GPU runs the kernels here, so they
    # are compiled for only one architecture.
    sanitizer, _, extent = purpose.partition("-")
    arguments += [f"-DSANITIZE={sanitizer}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -g1"]
    arguments += ["-DPERSEUS_GPU_ARCHITECTURES=90"]
    if extent == "all":
        arguments += ["-DTHREAD_TESTS_OF_ONE_THREAD=ON"]
    if purpose == "address" and (clang := fuzzing_compiler()):
        arguments += [f"-DCMAKE_CXX_COMPILER={clang}", "-DPERSEUS_BUILD_FUZZERS=ON"]
    return arguments


def build(purpose: str, targets: list[str] | None = None, quiet: bool = False) -> None:
    """Builds `targets`, or all; exits if that fails."""
    make = [str(Path(sys.executable).parent / "cmake"), "--build", str(folder(purpose))]
    if targets:
        make += ["--target", *targets]
    _run_locked(purpose, [_configure(purpose), make], quiet)


def write_compile_commands() -> None:
    """Links compile_commands.json at the root to that of build/alone, whose every command compiles
    one source. Those of other builds name unity sources, which an editor never opens."""
    written = folder("alone") / "compile_commands.json"
    listings = [
        file
        for pattern in ("CMakeLists.txt", "*.cmake")
        for place in ("csrc", "frameworks", "tests", "cmake")
        for file in (debian.ROOT / place).rglob(pattern)
    ]
    newest = max(file.stat().st_mtime for file in [debian.ROOT / "CMakeLists.txt", *listings])
    if not written.exists() or written.stat().st_mtime < newest:
        _run_locked("alone", [_configure("alone")], quiet=True)
        written.touch()
    link = debian.ROOT / "compile_commands.json"
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(written.relative_to(debian.ROOT))


def _configure(purpose: str) -> list[str]:
    bin_dir = Path(sys.executable).parent
    command = [str(bin_dir / "cmake"), f"-S{debian.ROOT}", f"-B{folder(purpose)}", "-GNinja"]
    return [*command, f"-DCMAKE_MAKE_PROGRAM={bin_dir / 'ninja'}", *_configuration(purpose)]


def _run_locked(purpose: str, commands: list[list[str]], quiet: bool) -> None:
    folder(purpose).mkdir(parents=True, exist_ok=True)
    # Parts of CI that run at the same time use the same folder.
    with (folder(purpose) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in commands:
            output = subprocess.DEVNULL if quiet else None
            if subprocess.run(command, cwd=debian.ROOT, stdout=output).returncode != 0:
                sys.exit(f"make: `{shlex.join(command)}` failed; its message is above.")
