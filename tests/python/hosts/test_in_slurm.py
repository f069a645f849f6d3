"""In a Slurm job: the drop-in under srun, and perseusrun in a batch script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from slurm import Slurm

pytest.importorskip("torch")

TRAIN = """
import sys, torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.tensor(hvd.rank() + 1), op=hvd.Sum).item()
sys.stdout.write(f"{hvd.rank()} of {hvd.size()}: {total} {sys.argv[1:]}\\n")
"""
MEETS = """
import os, torch, torch.distributed as dist, perseus.torch
dist.init_process_group("perseus")
total = torch.ones(1)
dist.all_reduce(total)
print(dist.get_rank(), dist.get_world_size(), total.item(), os.environ["MASTER_PORT"])
dist.destroy_process_group()
"""


def test_a_script_for_horovod_by_srun(slurm: Slurm, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    dropin = [sys.executable, "-m", "perseus.dropin"]
    result = slurm.run("srun", "-N2", "--ntasks-per-node=1", *dropin, str(program), "z")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["0 of 2: 3 ['z']", "1 of 2: 3 ['z']"]


def test_perseusrun_in_a_batch_script_keeps_the_port_that_it_has_chosen(
    slurm: Slurm, tmp_path: Path
) -> None:
    script, output, program = tmp_path / "job.sh", tmp_path / "out", tmp_path / "meets.py"
    program.write_text(MEETS)
    perseusrun = f"{sys.executable} -m perseus.run -np 2 {sys.executable} {program}"
    script.write_text(f"#!/bin/sh\nexport MASTER_ADDR=localhost MASTER_PORT=29617\n{perseusrun}\n")
    result = slurm.run("sbatch", "--wait", "-N1", "-n2", f"--output={output}", str(script))
    assert result.returncode == 0, output.read_text()
    ranks = [line for line in output.read_text().splitlines() if "stdout" in line]
    assert sorted(ranks) == ["[0]<stdout>:0 2 2.0 29617", "[1]<stdout>:1 2 2.0 29617"]
