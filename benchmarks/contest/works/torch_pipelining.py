"""Steps of a pipeline of torch.distributed.pipelining, each checked against the unsplit model."""

from __future__ import annotations

import copy
import functools
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

WIDTH, ROWS = 64, 4  # of a micro-batch, in float64
#: Those with one stage a rank. The others have two.
WITH_ONE_STAGE = ("1F1B", "GPipe")
#: Those in which the first and the last stage are on the same rank.
BACK_AND_FORTH = ("DualPipeV", "ZBVZeroBubble")
#: Sums of float64 are rounded in another order. A message in the wrong place makes more of it.
TOLERANCE = 1e-10


def run(contender: Any, *, iterations: int, schedule: str, replicas: int) -> list[float]:
    """Makes stages and a schedule, and takes steps. Returns the microseconds of each.

    Args:
      replicas: how many pipelines there are, whose stages are in shards (FSDP2). They share the
        ranks out among themselves.

    Raises ArithmeticError if a loss or a gradient is not that of the unsplit model.
    """
    pipeline = _Pipeline(schedule, _groups(replicas))
    times = []
    for _ in range(iterations):
        contender.barrier()
        times.append(pipeline.step())
    return times


@dataclass(frozen=True)
class _Groups:
    """The groups of a mesh, and the mesh along which stages are in shards, if there is one."""

    pipeline: dist.ProcessGroup | None
    replica: int
    replicas: int
    shards: Any = None


@functools.cache
def _groups(replicas: int) -> _Groups:
    if replicas == 1:
        return _Groups(None, 0, 1)
    shape = (replicas, dist.get_world_size() // replicas)
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("data", "pipeline"))
    return _Groups(mesh.get_group("pipeline"), dist.get_rank() // shape[1], replicas, mesh["data"])


def _stages_of(schedule: str, rank: int, ranks: int) -> list[int]:
    if schedule in WITH_ONE_STAGE:
        return [rank]
    return [rank, 2 * ranks - 1 - rank if schedule in BACK_AND_FORTH else rank + ranks]


def _model(stages: int) -> nn.Sequential:
    torch.manual_seed(3)
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages))
    return nn.Sequential(*layers).double()


class _Pipeline:
    """The stages of this rank, and the unsplit model with what it should give."""

    def __init__(self, schedule: str, groups: _Groups) -> None:
        ranks, rank = dist.get_world_size(groups.pipeline), dist.get_rank(groups.pipeline)
        numbers = _stages_of(schedule, rank, ranks)
        count = len(numbers) * ranks
        self._groups = groups
        self._whole = _model(count)
        self._modules = {
            number: _sharded(copy.deepcopy(self._whole[number]), groups) for number in numbers
        }
        stages = [
            pipelining.PipelineStage(
                module, number, count, torch.device("cpu"), group=groups.pipeline
            )
            for number, module in self._modules.items()
        ]
        self._schedule = pipelining.schedules.get_schedule_class(schedule)(
            stages[0] if schedule in WITH_ONE_STAGE else stages,
            count,
            loss_fn=nn.functional.mse_loss,
        )
        torch.manual_seed(4)  # on all ranks
        rows = torch.randn(groups.replicas, count * ROWS, WIDTH, dtype=torch.float64)
        targets = rows.flip(1)
        self._arguments = [rows[groups.replica]] if 0 in numbers else []
        self._target = targets[groups.replica] if count - 1 in numbers else None
        errors = nn.functional.mse_loss(self._whole(rows), targets, reduction="none").mean((1, 2))
        errors.mean().backward()
        self._loss = errors[groups.replica].detach()

    def step(self) -> float:
        """Returns the microseconds that it took."""
        for module in self._modules.values():
            module.zero_grad()
        losses: list[torch.Tensor] = []
        began = time.perf_counter()
        self._schedule.step(*self._arguments, target=self._target, losses=losses)
        took = (time.perf_counter() - began) * 1e6
        self._check(losses)
        return took

    def _check(self, losses: list[torch.Tensor]) -> None:
        # Ranks put shards together, so all do it before one of them may raise.
        gradients = {
            number: [_complete(parameter.grad) for parameter in module.parameters()]
            for number, module in self._modules.items()
        }
        for number, of_stage in gradients.items():
            for ours, parameter in zip(of_stage, self._whole[number].parameters(), strict=True):
                if not torch.allclose(ours, parameter.grad, rtol=0, atol=TOLERANCE):
                    raise ArithmeticError(f"stage {number} has gradients of another model")
        if self._target is not None and not torch.isclose(
            torch.stack(losses).mean(), self._loss, rtol=0, atol=TOLERANCE
        ):
            raise ArithmeticError("the losses are not those of the unsplit model")


def _sharded(module: nn.Module, groups: _Groups) -> nn.Module:
    if groups.shards is None:
        return module
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=groups.shards)


def _complete(gradient: Any) -> torch.Tensor:
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
