"""The folders in which Python packages install CUDA's runtime and NCCL.

The engine looks for these libraries in the process first, then in these folders, then in the
system.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator

from perseus_core import _engine

__all__ = ["add_folders"]


def add_folders() -> None:
    """Tells the engine which of these folders exist. Lists folders, and imports nothing."""
    folders = [
        folder for folder in (*_folders_of_wheels(), *_folders_of_cupy()) if ":" not in folder
    ]
    if folders:
        _engine.add_library_folders(":".join(folders))


def _folders_of_wheels() -> Iterator[str]:
    """Yields the folders of NVIDIA's packages, which share the folder `nvidia`.

    They are nvidia/nccl/lib, and nvidia/cuda_runtime/lib or, from CUDA 13 on, nvidia/cu13/lib.
    """
    for path in filter(None, sys.path):
        wheels = os.path.join(path, "nvidia")
        try:
            packages = sorted(os.listdir(wheels))
        except OSError:  # usually there is none
            continue
        for package in packages:
            lib = os.path.join(wheels, package, "lib")
            if package.startswith(("cu1", "cuda_runtime", "nccl")) and os.path.isdir(lib):
                yield lib


def _folders_of_cupy() -> Iterator[str]:
    """Yields where cupyx.tools.install_library puts NCCL.

    The folders are ~/.cupy/cuda_lib/<CUDA>/nccl/<version>/lib.
    """
    root = os.path.expanduser("~/.cupy/cuda_lib")
    if os.path.isdir(root):
        yield from sorted(glob.glob(f"{glob.escape(root)}/*/nccl/*/lib"), reverse=True)
