"""Ranks started by a real srun find each other with no setting at all."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from slurm import Slurm

SUM = """
import os, numpy, perseus_core
perseus_core.init()
one = numpy.full(3, perseus_core.rank() + 1)
total = perseus_core.allreduce(one, perseus_core.ReduceOp.SUM)
place = perseus_core.rank(), perseus_core.size(), perseus_core.local_rank()
print(os.environ["SLURMD_NODENAME"], *place, perseus_core.cross_rank(), *total)
"""

FAILS = """
import os, perseus_core
perseus_core.init()
print("started", perseus_core.rank(), flush=True)
perseus_core.barrier()
if perseus_core.rank() == 3:
    os._exit(7)
while True:
    perseus_core.barrier()
"""


def test_ranks_on_two_nodes_sum_and_know_their_places(slurm: Slurm) -> None:
    result = slurm.run("srun", "-N2", "--ntasks-per-node=2", sys.executable, "-c", SUM)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "node0 0 4 0 0 10 10 10",
        "node0 1 4 1 0 10 10 10",
        "node1 2 4 0 1 10 10 10",
        "node1 3 4 1 1 10 10 10",
    ]


def test_ranks_on_one_node_need_no_name_for_it(slurm: Slurm) -> None:
    # On the second node: rank 0's address is not that of where srun runs.
    options = ["-N1", "-n3", "--nodelist=node1"]
    forget = ["unshare", "-m", "sh", "-c", 'mount --bind /dev/null /etc/hosts && exec "$@"', "sh"]
    result = slurm.run("srun", *options, *forget, sys.executable, "-c", SUM)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        f"node1 {rank} 3 {rank} 0 6 6 6" for rank in range(3)
    ]


def test_a_batch_script_is_a_world_of_one_and_its_steps_are_worlds(
    slurm: Slurm, tmp_path: Path
) -> None:
    script, output = tmp_path / "job.sh", tmp_path / "out"
    (tmp_path / "sum.py").write_text(SUM)
    program = f"{sys.executable} {tmp_path}/sum.py"
    script.write_text(f"#!/bin/sh\n{program}\nsrun {program}\nsrun -n1 -N1 {program}\n")
    # Where srun says that it has to wait for the step before.
    errors = f"--error={tmp_path}/errors"
    result = slurm.run("sbatch", "--wait", "-N2", "-n2", f"--output={output}", errors, str(script))
    assert result.returncode == 0, result.stderr
    of_script, *of_steps = output.read_text().splitlines()
    assert of_script == "node0 0 1 0 0 1 1 1"
    assert sorted(of_steps[:2]) == ["node0 0 2 0 0 3 3 3", "node1 1 2 0 1 3 3 3"]
    assert of_steps[2:] == ["node0 0 1 0 0 1 1 1"]


@pytest.mark.parametrize("options", [[], ["--kill-on-bad-exit"]], ids=["alone", "killing"])
def test_a_failing_rank_ends_the_step(slurm: Slurm, options: list[str]) -> None:
    began = time.monotonic()
    places = ["-N2", "--ntasks-per-node=2"]
    result = slurm.run("srun", *options, *places, sys.executable, "-c", FAILS)
    assert result.returncode != 0
    assert time.monotonic() - began < 20
    assert sorted(result.stdout.splitlines()) == [f"started {rank}" for rank in range(4)]
    assert "task 3: Exited with exit code 7" in result.stderr
    slurm.wait_until_idle()


# A line is one write: torchrun's ranks do not buffer, so lines of several writes would be mixed.
WHO_AM_I = """
import sys, torch, perseus.torch.horovod as hvd
hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
sys.stdout.write(
    f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_rank()} here: {total:g}\\n"
)
"""


@pytest.mark.parametrize("mpi", ["none", "pmi2"])
def test_torchrun_below_srun_is_the_launcher(slurm: Slurm, tmp_path: Path, mpi: str) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "who_am_i.py"
    program.write_text(WHO_AM_I)
    torchrun = f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 2"
    torchrun += f" --master-addr 10.86.0.1 --node-rank $SLURM_PROCID {program}"
    places = [f"--mpi={mpi}", "-N2", "--ntasks-per-node=1"]
    result = slurm.run("srun", *places, "sh", "-c", torchrun)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        f"rank {rank} of 4, {rank % 2} here: 4" for rank in range(4)
    ]
