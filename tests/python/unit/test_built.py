"""What cuda_built and nccl_built say, and where Python packages have the libraries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import perseus_core
from perseus.common.basics import Basics
from perseus_core import gpu_libraries


@pytest.mark.parametrize(
    ("driver", "nccl", "expected"),
    [
        ("13.0, /usr/lib/libcuda.so.1", "2.21.5, /usr/lib/libnccl.so.2", (True, 22105)),
        ("13.0, /usr/lib/libcuda.so.1", "none found (libnccl.so.2: no such file)", (True, 0)),
        ("13.0, /a/libcuda.so.1", "2.8.3, /a/libnccl.so.2: not usable, it is 2.8.3", (True, 0)),
        ("none found (no such file)", "2.21.5, /usr/lib/libnccl.so.2", (False, 0)),
        ("10.2, /a/libcuda.so.1: not usable, too old", "2.21.5, /a/libnccl.so.2", (False, 0)),
    ],
)
def test_built_is_what_can_be_used(
    monkeypatch: pytest.MonkeyPatch, driver: str, nccl: str, expected: tuple[bool, int]
):
    monkeypatch.setattr(perseus_core, "check_build", lambda: {"CUDA driver": driver, "NCCL": nccl})
    assert (Basics().cuda_built(), Basics().nccl_built()) == expected


def test_folders_of_wheels_and_of_cupy_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    site = tmp_path / "site-packages"
    wanted = [site / "nvidia" / name / "lib" for name in ("cu13", "cuda_runtime", "nccl")]
    wanted.append(tmp_path / ".cupy/cuda_lib/12.x/nccl/2.16.2/lib")
    for folder in (*wanted, site / "nvidia/cudnn/lib", site / "nvidia/nccl/include"):
        folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "missing"), str(site)])
    monkeypatch.setenv("HOME", str(tmp_path))
    told: list[str] = []
    monkeypatch.setattr(gpu_libraries._engine, "add_library_folders", told.append)
    gpu_libraries.tell_folders()
    assert told == [":".join(map(str, wanted))]
