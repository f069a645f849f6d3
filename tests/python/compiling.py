"""Programs in C and C++ that use the library as perseus.config says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import skip_or_fail

ROOT = Path(__file__).resolve().parents[2]
#: Like those of cmake/compile_time.cmake: what another clone has compiled is found.
CACHE = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
LINKER = ("-l", "-L", "-Wl,")


def compiled(source: Path, program: Path, *options: str) -> Path:
    """Compiles one source to `program`, with warnings as errors, and returns its path.

    Libraries can be among the options. Uses ccache where it is installed.
    """
    name, fallback = ("CC", "cc") if source.suffix == ".c" else ("CXX", "c++")
    compiler = shutil.which(os.environ.get(name, fallback))
    if compiler is None:
        skip_or_fail(f"there is no compiler for {source.name}: install one, or name it in {name}")
    config = [sys.executable, "-m", "perseus.config", "--cflags", "--libs"]
    found = subprocess.run(config, capture_output=True, text=True, check=True).stdout.split()
    flags = [*options, *found, "-pthread"]
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    compilation = [compiler, *strict, *(flag for flag in flags if not flag.startswith(LINKER))]
    if ccache := shutil.which("ccache"):
        compilation.insert(0, ccache)
    made = program.with_name(f"{program.name}.o")
    environment = {**os.environ, **CACHE}
    subprocess.run([*compilation, "-c", str(source), "-o", str(made)], env=environment, check=True)
    command = [compiler, str(made), "-o", str(program), *flags, "-lm", "-ldl"]
    subprocess.run(command, check=True)
    return program
