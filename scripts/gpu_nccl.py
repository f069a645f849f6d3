"""Finds an NCCL that several ranks on one GPU can use, and how to tell the ranks of it."""

from __future__ import annotations

import argparse
import ctypes
import glob
import lzma
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from debian import ROOT

#: The first version that takes NCCL_MULTI_RANK_GPU_ENABLE, in NCCL's numbering.
OLDEST = 23003
NAME = "libnccl.so.2"
#: The folder in which NCCL is looked for if NCCL_FOR_ONE_GPU names none.
DEFAULT = ROOT / "build/nccl_for_one_gpu"


@dataclass
class Found:
    """The NCCL that was found, or why there is none; why_not is empty if there is one."""

    library: Path | None
    version: str = ""
    why_not: str = ""

    def environment(self, ranks: int) -> dict[str, str]:
        """Has it loaded before PyTorch loads another; the two would share names in one process."""
        return {
            "LD_PRELOAD": str(self.library),
            "PERSEUS_CUDA_LIBRARY_PATH": str(self.library.parent) if self.library else "",
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_MAX_CTAS": str(max(1, 16 // ranks)),
        }


def find() -> Found:
    seen = []
    for file in _candidates():
        version = _version(file)
        if version >= OLDEST:
            return Found(file, _text(version))
        seen.append(f"{file} is {_text(version)}" if version else f"{file} cannot be loaded")
    why = "; ".join(seen) or "none was found"
    return Found(
        None,
        why_not=f"NCCL {_text(OLDEST)} or newer is needed, and {why}: NCCL_FOR_ONE_GPU names a "
        f"folder with {NAME} or {NAME}.xz",
    )


def _candidates() -> Iterator[Path]:
    named = os.environ.get("NCCL_FOR_ONE_GPU")
    for folder in [Path(named).resolve()] if named else [DEFAULT]:
        packed = folder / f"{NAME}.xz"
        if (folder / NAME).exists():
            yield folder / NAME
        elif packed.exists():
            unpacked = ROOT / "build/gpu/nccl" / NAME
            unpacked.parent.mkdir(parents=True, exist_ok=True)
            unpacked.write_bytes(lzma.decompress(packed.read_bytes()))
            yield unpacked
    for path in filter(None, sys.path):
        yield from map(Path, glob.glob(f"{glob.escape(path)}/nvidia/nccl/lib/{NAME}"))


def _version(library: Path) -> int:
    """Returns the version, or 0 if the library cannot be loaded. A separate process loads it."""
    done = subprocess.run(
        [sys.executable, __file__, str(library)], stdout=subprocess.PIPE, text=True
    )
    return int(done.stdout) if done.returncode == 0 else 0


def _text(version: int) -> str:
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Prints the version of an NCCL, in its numbering.")
    parser.add_argument("library", metavar="LIBRARY")
    number = ctypes.c_int()
    if ctypes.CDLL(parser.parse_args().library).ncclGetVersion(ctypes.byref(number)) != 0:
        sys.exit(1)
    print(number.value)
