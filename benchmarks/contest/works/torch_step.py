"""Training steps of torch.distributed: replicas, shards of parameters, and shards of layers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 3
#: Blocks of two layers, of a transformer's shape: their parameters take 33 MB.
BLOCKS, WIDTH, HIDDEN = 4, 512, 2048
#: A step computes little, as on an accelerator: the benchmark is about what is communicated.
ROWS = {"ddp": 8, "fsdp2": 8, "tensor_parallel": 64}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, HIDDEN)
        self.out = nn.Linear(HIDDEN, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.out(torch.relu(self.into(rows)))


def ddp(contender: Any, *, iterations: int) -> list[float]:
    """Each rank has its own data, and all parameters."""
    return _timed(contender, "ddp", DistributedDataParallel, iterations)


def fsdp2(contender: Any, *, iterations: int) -> list[float]:
    """Each rank has its own data, and its share of all parameters."""
    return _timed(contender, "fsdp2", _sharded, iterations)


def tensor_parallel(contender: Any, *, iterations: int) -> list[float]:
    """All ranks have the same data, and their shares of each layer."""
    return _timed(contender, "tensor_parallel", _split, iterations)


def _sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for block in model.children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _split(model: nn.Module) -> nn.Module:
    from torch.distributed.tensor import parallel

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    plan: dict[str, Any] = {"into": parallel.ColwiseParallel(), "out": parallel.RowwiseParallel()}
    for block in model.children():
        parallel.parallelize_module(block, mesh, plan)
    return model


class _Trainer:
    """A model that is kept between turns, as in training."""

    def __init__(self, contender: Any, kind: str, distribute: Callable[..., nn.Module]) -> None:
        torch.manual_seed(0)
        self._contender = contender
        self._model = distribute(nn.Sequential(*(Block() for _ in range(BLOCKS))))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        of_rank = 0 if kind == "tensor_parallel" else contender.rank
        torch.manual_seed(1 + of_rank)
        self._rows = torch.randn(ROWS[kind], WIDTH)
        self._same_rows = torch.ones(2, WIDTH)

    def step(self) -> float:
        """Returns the microseconds that it took."""
        began = time.perf_counter()
        self._optimizer.zero_grad()
        self._model(self._rows).pow(2).mean().backward()
        self._optimizer.step()
        return (time.perf_counter() - began) * 1e6

    def check(self) -> None:
        """Raises if the ranks' models give different results: then they did not train together."""
        with torch.no_grad():
            own = float(self._model(self._same_rows).sum())
        whole = torch.full((1,), own)
        self._contender.allreduce(whole)
        mean = float(whole) / self._contender.size
        if not abs(mean - own) <= 1e-4 * abs(mean):
            raise ArithmeticError(f"ranks have different models: {own}, on average {mean}")


_trainers: dict[str, _Trainer] = {}


def _timed(
    contender: Any, kind: str, distribute: Callable[..., nn.Module], iterations: int
) -> list[float]:
    if kind not in _trainers:
        _trainers[kind] = _Trainer(contender, kind, distribute)
    trainer = _trainers[kind]
    times = [trainer.step() for _ in range(WARM_UP + iterations)]
    trainer.check()
    return times[WARM_UP:]
