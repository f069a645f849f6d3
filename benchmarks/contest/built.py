"""Builds the programs of benchmarks/ that call rooms of the engine, into build/benchmarks."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build/benchmarks"


@functools.cache
def program(name: str) -> Path:
    """Builds the program or brings it up to date, at most once in each process.

    Raises CalledProcessError; the compiler has printed why.
    """
    sys.path.insert(0, str(ROOT / "scripts"))
    import toolchain

    bin_dir = Path(sys.executable).parent
    configure = [bin_dir / "cmake", f"-S{ROOT}", f"-B{FOLDER}", "-GNinja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={bin_dir / 'ninja'}", "-DPERSEUS_BUILD_BENCHMARKS=ON"]
    configure += toolchain.load().cmake_args
    for command in (configure, [bin_dir / "ninja", "-C", FOLDER, name]):
        subprocess.run(command, check=True, stdout=sys.stderr)
    return FOLDER / "benchmarks" / name
