"""Tests the share of a host's processors that a rank gets, and quotas of processor time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import RunRanks

from perseus_core import processors

#: An environment as mpirun and srun leave it.
UNDECIDED = """
import os
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
    os.environ.pop(name, None)
"""


def shares(run_ranks: RunRanks, size: int, binding: str = "") -> list[int]:
    script = f"""
import os
from perseus_core import process
rank = int(os.environ["PERSEUS_RANK"])
{binding}
process.init()
print(process.processor_share())
"""
    result = run_ranks(size, script)
    assert result.returncode == 0, result.stderr
    return [int(line.rpartition(":")[2]) for line in sorted(result.stdout.splitlines())]


def test_ranks_that_may_run_anywhere_share_all_processors(run_ranks: RunRanks) -> None:
    allowed = len(os.sched_getaffinity(0))
    assert shares(run_ranks, 1) == [allowed]
    assert shares(run_ranks, allowed) == [1] * allowed
    assert shares(run_ranks, allowed + 1) == [1] * (allowed + 1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor only")
def test_a_rank_that_is_bound_leaves_the_rest_to_the_other(run_ranks: RunRanks) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    bind = f"os.sched_setaffinity(0, [{{{first}}}, {set(others)}][rank])"
    assert shares(run_ranks, 2, bind) == [1, len(others)]


def test_torch_distributed_shares_processors_as_well(run_ranks: RunRanks) -> None:
    script = """
import torch, torch.distributed, perseus.torch
before = torch.get_num_threads()
torch.distributed.init_process_group("perseus")
print(before, torch.get_num_threads())
torch.distributed.destroy_process_group()
"""
    result = run_ranks(2, UNDECIDED + script)
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        before, after = map(int, line.rpartition(":")[2].split())
        assert after == min(before, max(1, len(os.sched_getaffinity(0)) // 2))


def test_sessions_of_tensorflow_get_the_share_too(run_ranks: RunRanks) -> None:
    script = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow, perseus.tensorflow.horovod as hvd
hvd.init()
print(os.environ.get("TF_NUM_INTRAOP_THREADS"))
"""
    result = run_ranks(2, UNDECIDED + script)
    assert result.returncode == 0, result.stderr
    allowed = len(os.sched_getaffinity(0))
    expected = str(max(1, allowed // 2)) if allowed > 1 else "None"
    assert {line.rpartition(":")[2] for line in result.stdout.splitlines()} == {expected}


def test_the_smallest_quota_of_the_control_groups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, outer = tmp_path / "job/step", tmp_path / "job"
    inner.mkdir(parents=True)
    monkeypatch.setattr(processors, "_groups", lambda: [inner, outer])
    assert processors.quota() is None
    (inner / "cpu.max").write_text("max 100000\n")
    (outer / "cpu.max").write_text("250000 100000\n")
    assert processors.quota() == 2.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert processors.quota() == 0.5
    assert processors.usable() == 1


def test_a_quota_of_the_first_version_of_control_groups_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "_groups", lambda: [tmp_path])
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu.cfs_quota_us").write_text("400000\n")
    assert processors.quota() == 4
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    assert processors.quota() is None
