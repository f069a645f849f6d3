"""Where Python packages have CUDA's runtime and NCCL.

The engine opens what is in the process already, then what is in these folders, then the system's.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator

from perseus_core import _engine

__all__ = ["add_folders"]


def add_folders() -> None:
    """Tells the engine which folders there are. It costs some listings, and imports nothing."""
    folders = [folder for folder in (*_of_wheels(), *_of_cupy()) if ":" not in folder]
    if folders:
        _engine.add_library_folders(":".join(folders))


def _of_wheels() -> Iterator[str]:
    """NVIDIA's packages share one folder: nvidia/nccl/lib, and nvidia/cuda_runtime/lib or, from
    CUDA 13 on, nvidia/cu13/lib."""
    for path in filter(None, sys.path):
        wheels = os.path.join(path, "nvidia")
        try:
            packages = sorted(os.listdir(wheels))
        except OSError:  # most often there is none
            continue
        for package in packages:
            lib = os.path.join(wheels, package, "lib")
            if package.startswith(("cu1", "cuda_runtime", "nccl")) and os.path.isdir(lib):
                yield lib


def _of_cupy() -> Iterator[str]:
    """Where cupyx.tools.install_library puts NCCL: ~/.cupy/cuda_lib/<CUDA>/nccl/<version>/lib."""
    root = os.path.expanduser("~/.cupy/cuda_lib")
    if os.path.isdir(root):
        yield from sorted(glob.glob(f"{glob.escape(root)}/*/nccl/*/lib"), reverse=True)
