"""Arrays on GPUs, by the stand-in for CUDA and NCCL that the C++ tests build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunRanks, all_well, skip_or_fail

ROOT = Path(__file__).resolve().parents[3]
STANDIN = ROOT / "build/dev/tests/standin/lib"
RANKS = Path(__file__).with_name("gpu_ranks.py")


@pytest.fixture
def standin() -> dict[str, str]:
    """An environment whose CUDA and NCCL are the stand-in."""
    if not (STANDIN / "libnccl.so.2").exists():
        skip_or_fail(f"there is no stand-in for CUDA in {STANDIN}: run `make cpp-tests`")
    folders = [RANKS.parent, ROOT / "tests/python"]
    return {
        **os.environ,
        "PERSEUS_CUDA_LIBRARY_PATH": str(STANDIN),
        "PERSEUS_STANDIN_DELAY_US": "200",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }


@pytest.mark.parametrize(
    ("versions", "support", "ways"),
    [
        ({}, (13000, 13000, 22900), "by NCCL or by way of the host"),
        ({"NCCL": "21805"}, (13000, 13000, 21805), "by NCCL or by way of the host"),
        ({"NCCL": "21705"}, (13000, 13000, 0), "by way of the host"),
        ({"DRIVER": "12080"}, (12080, 0, 22900), "by NCCL or by way of the host"),
        ({"DRIVER": "10020"}, (0, 13000, 0), "no"),
    ],
    ids=lambda value: ",".join(value) or "all" if isinstance(value, dict) else "",
)
def test_support_is_what_can_be_used(
    standin: dict[str, str], versions: dict[str, str], support: tuple[int, int, int], ways: str
):
    script = """
import perseus.run.cli, perseus.common.basics, perseus_core
found, basics = perseus_core.gpu_support(), perseus.common.basics.Basics()
print(found.cuda_driver, found.cuda_runtime, found.nccl)
print(basics.cuda_built(), basics.nccl_built())
perseus.run.cli.check_build()
print("kernels" if found.has_kernels else "no kernels")
"""
    environment = {f"PERSEUS_STANDIN_{what}_VERSION": number for what, number in versions.items()}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**standin, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    driver, _, nccl = support
    assert lines[:2] == [" ".join(map(str, support)), f"{driver > 0} {nccl}"]
    assert f"  tensors on GPUs: {ways}" in lines
    assert ("  CUDA kernels: built" in lines) == (lines[-1] == "kernels")


@pytest.mark.parametrize("operations", ["nccl", "staged"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_collectives_on_gpu_arrays(
    run_ranks: RunRanks, standin: dict[str, str], size: int, operations: str
):
    environment = {**standin, "PERSEUS_GPU_OPERATIONS": operations}
    all_well(run_ranks(size, RANKS.read_text(), environment=environment), size)


@pytest.mark.parametrize("operations", ["auto", "nccl"])
def test_nccl_carries_nothing_between_hosts_that_is_to_be_protected(
    run_ranks: RunRanks, standin: dict[str, str], operations: str
):
    script = """
import os
os.environ["PERSEUS_HOSTNAME"] = "host" + os.environ["PERSEUS_RANK"]
import numpy as np
import perseus_core as core
from standin_gpu import Gpu, InterfaceArray

gpu = Gpu()
core.init()
array = InterfaceArray(gpu, np.ones(1000))
try:
    result = core.allreduce(array, core.ReduceOp.SUM)
    address, _ = result.__cuda_array_interface__["data"]
    assert gpu.read(address, (1000,), np.dtype("float64")).tolist() == [2.0] * 1000
    print("staged")
except core.HorovodInternalError as error:
    print(error)
"""
    environment = {**standin, "PERSEUS_GPU_OPERATIONS": operations, "PERSEUS_WIRE": "encrypted"}
    result = run_ranks(2, script, environment=environment)
    assert result.returncode == 0, result.stderr
    why = "NCCL does not protect what goes between hosts, as PERSEUS_WIRE asks"
    if operations == "auto":
        assert result.stdout.count("staged") == 2
        assert f"tensors on GPUs go by way of the host's memory: {why}" in result.stderr
    else:
        assert result.stdout.count(f"PERSEUS_GPU_OPERATIONS is nccl, but {why}") == 2
