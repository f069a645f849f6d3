"""Gradients as Perseus's DistributedOptimizer reduces them; not a public interface.

Its hooks are called as autograd would call them, and the wait is the first part of `step`. The time
of autograd itself is not included: hook.py measures that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import perseus.torch.horovod as hvd
from contest.contenders.hvd import HvdContender
from perseus.torch.horovod.compression import Compression
from perseus.torch.horovod.gradients import Gradients
from perseus.torch.horovod.trained_parameters import Parameters


class Contender(HvdContender):
    def __init__(self) -> None:
        super().__init__(hvd)
        self._hooks: dict[str, tuple[Callable[[torch.Tensor], None], torch.Tensor]] = {}
        self._is_under_way = False

    def declare(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Takes all gradients of a model, in the order of the forward pass."""
        params = {name: torch.nn.Parameter(torch.empty_like(grad)) for name, grad in named}
        names = {param: name for name, param in params.items()}
        self._gradients = Gradients(
            Parameters(list(params.values()), names),
            groups=None,
            order=None,
            compression=Compression.none,
            passes=1,
            op=hvd.Sum,
            predivide=1.0,
            sparse_as_dense=False,
            process_set=hvd.global_process_set,
        )
        for name, grad in named:
            param = params[name]
            param.grad = grad
            (hook,) = param._post_accumulate_grad_hooks.values()
            self._hooks[name] = hook, param

    def allreduce_async(self, tensor: torch.Tensor, name: str, priority: int = 0) -> Any:
        hook, param = self._hooks[name]
        hook(param)
        self._is_under_way = True

    def wait(self, handle: Any) -> None:
        if self._is_under_way:
            self._gradients.synchronize()
            self._is_under_way = False
