"""Pipelines of torch.distributed over hosts give what the unsplit model gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from netlab import Hosts, lines

pytest.importorskip("torch.distributed.pipelining")

PARALLEL = Path(__file__).parents[1] / "parallel"

# One pipeline of all ranks, and two pipelines whose stages are in shards.
TRAINS = """
import sys
sys.path.insert(0, PARALLEL)
import torch.distributed as dist, perseus.torch
from torch.distributed.fsdp import fully_shard
from torch_pipelines import SCHEDULES, Pipeline, blocks, stages_of, train

dist.init_process_group("perseus")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = dist.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "pipeline"))
chosen = {"ScheduleGPipe", "ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble"} & set(SCHEDULES)
for schedule in sorted(chosen):
    whole = blocks(size * len(stages_of(schedule, rank, size)))
    train(Pipeline(schedule, whole), whole)
    stages = mesh.get_group("pipeline")
    whole = blocks(size // 2 * len(stages_of(schedule, rank, size)))
    sharded = Pipeline(
        schedule, whole, stages, distribute=lambda module: fully_shard(module, mesh=mesh["data"])
    )
    train(sharded, whole, replicas=2)
sys.stdout.write(f"{rank} {len(chosen)}\\n")
dist.destroy_process_group()
"""


def test_pipelines_over_hosts(hosts: Hosts) -> None:
    """Stages are neighbours on one host and on two; shards of a stage are on two."""
    script = TRAINS.replace("PARALLEL", repr(str(PARALLEL)))
    result = hosts.run_script("0:2,1:1,2:1", script, timeout=120)
    assert result.returncode == 0, result.stderr
    assert len(lines(result.stdout)) == 4
