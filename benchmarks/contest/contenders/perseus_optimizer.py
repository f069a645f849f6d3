"""Gradients as the hooks of Perseus's DistributedOptimizer submit them; not a public interface.

A name is registered once, and has a priority. What autograd and the hooks themselves take is not
in it: hook.py has that.
"""

from __future__ import annotations

from typing import Any

import torch

import perseus.torch.horovod as hvd
from contest.contenders.hvd import HvdContender
from perseus.torch.horovod.gradients import DenseReduction
from perseus_core import WORLD, OperationKind, _engine


class Contender(HvdContender):
    def __init__(self) -> None:
        super().__init__(hvd)
        self._reductions: dict[str, DenseReduction] = {}

    def allreduce_async(self, tensor: torch.Tensor, name: str, priority: int = 0) -> Any:
        reduction = self._reductions.get(name)
        if reduction is None:
            id = _engine.register(WORLD, OperationKind.ALLREDUCE, f"allreduce.{name}")
            reduction = DenseReduction(id, name, priority, hvd.Sum)
            self._reductions[name] = reduction
        reduction.start(tensor)
        return reduction

    def wait(self, handle: Any) -> None:
        handle()
