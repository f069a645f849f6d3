"""Tests where CUDA's libraries are found in Python packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perseus_core import gpu_libraries


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
    gpu_libraries.add_folders()
    assert told == [":".join(map(str, wanted))]
