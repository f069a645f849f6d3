"""torch.distributed beside Perseus in an elastic job: each world has its own place to meet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunRanks, all_well

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
import perseus.torch.horovod as hvd

backend, hosts = sys.argv[1:]
hvd.init()
state = hvd.elastic.TorchState(step=0, masters=[])

def changes(text):
    if hvd.rank() == 0:
        with open(hosts + ".new", "w") as file:
            file.write(text)
        os.replace(file.name, hosts)

@hvd.elastic.run
def train(state):
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(backend)
    assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())
    assert int(os.environ["LOCAL_WORLD_SIZE"]) == hvd.local_size()
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [hvd.size()] * 3
    here = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    state.masters = [*state.masters, (hvd.size(), here)]
    if hvd.size() == 2:
        changes("localhost:2\\n127.0.0.1:1\\n")
    elif len(state.masters) == 2:
        changes("127.0.0.1:1\\n")
    while hvd.size() > 1:
        hvd.allreduce(torch.ones(1), name="step")
        state.commit()

train(state)
sizes, places = zip(*state.masters)
assert sizes == (2, 3, 1), sizes
assert len(set(places)) == 3 and {address for address, _ in places} == {"127.0.0.1"}, places
print("well", hvd.rank(), hvd.size(), flush=True)
"""


@pytest.mark.parametrize("backend", ["gloo", "perseus"])
def test_torch_distributed_meets_anew_in_each_world(backend: str, tmp_path: Path) -> None:
    hosts, program = tmp_path / "hosts", tmp_path / "train.py"
    hosts.write_text("localhost:2\n")
    program.write_text(PROGRAM)
    launcher = [sys.executable, "-m", "perseus.run", "-np", "2", "--min-np", "1"]
    result = subprocess.run(
        [*launcher, "--watch-hostfile", str(hosts), sys.executable, str(program), backend, hosts],
        env={**os.environ, "MASTER_ADDR": "a.batch.script.s", "MASTER_PORT": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == "[2]<stdout>:well 0 1\n", result.stdout + result.stderr


ALONE = """
import torch, torch.distributed as dist, perseus.torch
dist.init_process_group("perseus")
total = torch.ones(3)
dist.all_reduce(total)
assert total.tolist() == [dist.get_world_size()] * 3
dist.destroy_process_group()
print("well")
"""


@pytest.mark.parametrize("size", [2, 3])
def test_torch_distributed_alone_finds_the_first_ranks(run_ranks: RunRanks, size: int) -> None:
    all_well(run_ranks(size, ALONE, options=("--min-np", "1")), size)
