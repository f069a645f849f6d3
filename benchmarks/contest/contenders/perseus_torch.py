"""Perseus through its horovod.torch interface."""

from __future__ import annotations

from typing import Any

import torch

import perseus.torch.horovod as hvd
import perseus_core as core
from contest.contenders.hvd import HvdContender


class Contender(HvdContender):
    def __init__(self) -> None:
        super().__init__(hvd)

    def allreduce_async(self, tensor: torch.Tensor, name: str, priority: int = 0) -> Any:
        """As DistributedOptimizer does, which gives priorities; Horovod's calls have none."""
        array = tensor.numpy()
        return core.allreduce_async(
            array, core.ReduceOp.SUM, name=name, out=array, priority=priority
        )

    def wait(self, handle: Any) -> None:
        handle.wait()
