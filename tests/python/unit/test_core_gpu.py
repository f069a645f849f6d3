"""Arrays on GPUs, by the stand-in for CUDA and NCCL that the C++ tests build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import RunRanks, all_well

ROOT = Path(__file__).resolve().parents[3]
STANDIN = ROOT / "build/dev/tests/standin/lib"
RANKS = Path(__file__).with_name("gpu_ranks.py")


@pytest.fixture
def standin() -> dict[str, str]:
    """An environment whose CUDA and NCCL are the stand-in."""
    if not (STANDIN / "libnccl.so.2").exists():
        why = f"there is no stand-in for CUDA in {STANDIN}: run `make cpp-tests`"
        if os.environ.get("NO_SKIP"):
            pytest.fail(why)
        pytest.skip(why)
    folders = [RANKS.parent, ROOT / "tests/python/parallel"]
    return {
        **os.environ,
        "PERSEUS_CUDA_LIBRARY_PATH": str(STANDIN),
        "PERSEUS_STANDIN_DELAY_US": "200",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }


@pytest.mark.parametrize("operations", ["nccl", "staged"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_collectives_on_gpu_arrays(
    run_ranks: RunRanks, standin: dict[str, str], size: int, operations: str
):
    environment = {**standin, "PERSEUS_GPU_OPERATIONS": operations}
    all_well(run_ranks(size, RANKS.read_text(), environment=environment), size)
