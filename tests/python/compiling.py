"""Programs in C and C++ that use the library as perseus.config says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import skip_or_fail


def compiled(source: Path, program: Path, *options: str) -> Path:
    """Compiles one source to `program`, with warnings as errors, and returns its path.

    `options` follow the source, so libraries can be among them.
    """
    name, fallback = ("CC", "cc") if source.suffix == ".c" else ("CXX", "c++")
    compiler = shutil.which(os.environ.get(name, fallback))
    if compiler is None:
        skip_or_fail(f"there is no compiler for {source.name}: install one, or name it in {name}")
    config = [sys.executable, "-m", "perseus.config", "--cflags", "--libs"]
    flags = subprocess.run(config, capture_output=True, text=True, check=True).stdout.split()
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = [compiler, *strict, str(source), "-o", str(program), *options, *flags]
    subprocess.run([*command, "-pthread", "-lm", "-ldl"], check=True)
    return program
