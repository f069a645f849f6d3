"""torch.distributed is left and joined again, and ranks are not equally fast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunRanks, all_well

pytest.importorskip("torch")

# A job that ends as nearly all programs with groups do.
FINISHES = """
import torch, torch.distributed as dist, perseus.torch
dist.init_process_group("perseus")
group = dist.new_group()
dist.all_reduce(torch.ones(1), group=group)
dist.barrier()
dist.destroy_process_group()
print("well")
"""

# Ranks are slow by chance, at different places.
ROUNDS = """
import os, random, time, torch, torch.distributed as dist, perseus.torch
from torch.distributed.device_mesh import init_device_mesh

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
luck = random.Random(rank)

def dawdle():
    if luck.random() < 0.4:
        time.sleep(luck.random() * 0.03)

for number in range(50):
    dist.init_process_group("perseus", **ARGUMENTS)
    dawdle()
    groups = [dist.new_group(), dist.new_group([0, size - 1])]
    if size % 2 == 0 and number % 2:
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        groups += mesh.get_all_groups()
    groups = [group for group in groups if group is not dist.GroupMember.NON_GROUP_MEMBER]
    for group in groups:
        total = torch.ones(1000)
        dist.all_reduce(total, group=group)
        assert total.eq(dist.get_world_size(group)).all(), total
        dawdle()
    if number % 3 == 0 and rank in (0, size - 1):
        peer = size - 1 - rank
        for call in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
            call(torch.ones(2), peer)
    works = []
    for group in [None, *groups] if number % 5 == 0 else ():
        large = torch.ones(1 + 5000 * number)
        try:
            works.append(dist.all_reduce(large, group=group, async_op=True))
        except RuntimeError as error:  # another has left already
            assert "has shut down or ended" in str(error), error
    dawdle()
    dist.destroy_process_group()
    for work in works:  # that it has ended is enough
        try:
            work.wait()
        except (RuntimeError, ValueError) as error:
            assert "is not complete" not in str(error), error
    dawdle()
print("well")
"""


@pytest.mark.parametrize("size", [2, 3, 4])
def test_whoever_is_first_to_leave_a_finished_job(run_ranks: RunRanks, size: int) -> None:
    for _ in range(2):
        all_well(run_ranks(size, FINISHES), size)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_fifty_rounds_through_files(run_ranks: RunRanks, tmp_path: Path, size: int) -> None:
    arguments = f"dict(init_method=f'file://{tmp_path}/{{number}}', rank=rank, world_size=size)"
    script = ROUNDS.replace("**ARGUMENTS", f"**{arguments}")
    all_well(run_ranks(size, script, timeout=180), size)


@pytest.mark.timeout(200)
def test_fifty_rounds_at_the_store_of_perseusrun(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, ROUNDS.replace("**ARGUMENTS", ""), timeout=180), 2)


@pytest.mark.timeout(200)
def test_fifty_rounds_at_the_store_of_torchrun(tmp_path: Path) -> None:
    """There it is the same store in every round, with the keys of earlier ones."""
    program = tmp_path / "program.py"
    program.write_text(ROUNDS.replace("**ARGUMENTS", ""))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(program)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    all_well(result, 2)
