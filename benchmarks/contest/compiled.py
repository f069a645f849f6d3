"""Compiles contenders written in C on first use, into build/benchmarks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from contest import models

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "contenders"
FOLDER = ROOT / "build/benchmarks"


def program(source: str, mpi: str | None = None) -> Path:
    """Compiles contenders/`source` against the MPI in build/`mpi`, or against perseus.h.

    Raises OSError or CalledProcessError, whose stderr is the compiler's output.
    """
    target = FOLDER / (Path(source).stem + (f"_{mpi}" if mpi else ""))
    shared = ("contender", "gradients", "calls", "serve")
    common = [file for name in shared for file in SOURCES.glob(f"{name}.*")]
    inputs = [SOURCES / source, *common, Path(models.__file__)]
    if source == "perseus.c":
        inputs.append(ROOT / "perseus_core/include/perseus/perseus.h")
    if target.exists() and target.stat().st_mtime > max(file.stat().st_mtime for file in inputs):
        return target
    FOLDER.mkdir(parents=True, exist_ok=True)
    engine = ROOT / "perseus_core"
    compiler = [str(ROOT / f"build/{mpi}/bin/mpicc")] if mpi else [os.environ.get("CC", "cc")]
    if mpi and not Path(compiler[0]).exists():
        raise FileNotFoundError(f"{mpi} is not there: make peers")
    (FOLDER / "models.h").write_text(tables())
    options = [
        "-std=gnu11",
        "-O2",
        "-Wall",
        f"-I{FOLDER}",
        "-o",
        str(target),
        str(SOURCES / source),
    ]
    options += [str(file) for file in common if file.suffix == ".c"]
    if source == "perseus.c":
        library = str(engine / "lib")
        options += [f"-I{engine / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
        options += ["-lperseus", "-pthread"]
    subprocess.run(
        [*compiler, *options], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return target


def tables() -> str:
    """Returns C tables of the models' gradients, in forward order."""
    lines = ["#include <stddef.h>"]
    lines += ["typedef struct { const char* name; size_t elements; } tensor_t;"]
    lines += [
        "typedef struct { const char* name; const tensor_t* tensors; size_t count; } model_t;"
    ]
    listed = []
    for number, name in enumerate(models.NAMES):
        tensors = models.model(name).tensors
        lines += [f"static const tensor_t tensors{number}[] = {{"]
        lines += [f'  {{"{name}.{tensor.name}", {tensor.elements}}},' for tensor in tensors]
        lines += ["};"]
        listed += [f'  {{"{name}", tensors{number}, {len(tensors)}}},']
    return "\n".join([*lines, "static const model_t models[] = {", *listed, "};", ""])


def reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"does not compile: {error.stderr.strip().splitlines()[0]}"
    return str(error)
