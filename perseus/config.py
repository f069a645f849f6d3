"""python -m perseus.config, which shows where libperseus, its header and its CMake package are.

cc program.c $(python -m perseus.config --cflags --libs)
cmake -Dperseus_DIR=$(python -m perseus.config --cmake) ...
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path


def prefix() -> Path:
    """Returns the folder that holds lib/ and include/. Does not load the engine."""
    spec = importlib.util.find_spec("perseus_core")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("perseus_core is not installed")
    return Path(spec.submodule_search_locations[0])


def include_dir() -> Path:
    """Returns the folder for `#include <perseus/perseus.h>`."""
    return prefix() / "include"


def library_dir() -> Path:
    """Returns the folder that holds libperseus.so."""
    return prefix() / "lib"


def cmake_dir() -> Path:
    """Returns the folder of the CMake package, for perseus_DIR."""
    return library_dir() / "cmake/perseus"


def cflags() -> str:
    """Returns the flags with which a compiler finds the header."""
    return f"-I{include_dir()}"


def libs() -> str:
    """Returns the flags with which a linker, and the program, find the library."""
    return f"-L{library_dir()} -Wl,-rpath,{library_dir()} -lperseus"


def main() -> None:
    """Prints what the flags on the command line ask for."""
    parser = argparse.ArgumentParser(
        prog="python -m perseus.config", description=__doc__.splitlines()[0]
    )
    shown = {
        "--cmake": (cmake_dir, "folder of the CMake package, for perseus_DIR"),
        "--pkg-config": (lambda: library_dir() / "pkgconfig", "folder for PKG_CONFIG_PATH"),
        "--include": (include_dir, "folder for #include <perseus/perseus.h>"),
        "--cflags": (cflags, "flags for the compiler"),
        "--libs": (libs, "flags for the linker"),
    }
    for flag, (function, text) in shown.items():
        parser.add_argument(flag, action="append_const", dest="shown", const=function, help=text)
    chosen = parser.parse_args().shown
    if not chosen:
        parser.error(f"say what to show: {', '.join(shown)}")
    print(" ".join(str(function()) for function in chosen))


if __name__ == "__main__":
    main()
