"""DistributedOptimizer for Adasum, which combines steps in place of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from perseus.torch.horovod.deferred_updates import Update
from perseus.torch.horovod.distributed import Distributed


class DistributedDeltas(Distributed):
    """For Adasum, which adds up what the ranks' steps have changed, not their gradients.

    As Horovod's, with these differences: what is reduced comes about in step, not while backward
    runs, so that gradients can be clipped or unscaled before it; and any process set will do.
    """

    _reduces_in_backward = False

    def synchronize(self) -> None:
        """Does nothing: gradients stay each rank's own."""

    def skip_synchronize(self) -> Any:
        """AssertionError: a step without its reduction would leave the ranks apart."""
        raise AssertionError("skip_synchronize is not supported with Adasum: step reduces")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's step and combines what it changed with the other ranks' changes."""
        if self._gradients is None:
            return super().step(closure)
        result, deltas, update = self._step_later(closure)
        self._gradients.finish(self._gradients.buckets)
        update(list(deltas))
        return result

    step.hooked = True  # type: ignore[attr-defined]

    def _step_later(
        self, closure: Callable[[], Any] | None = None
    ) -> tuple[Any, dict[torch.Tensor, torch.Tensor], Update]:
        params = self._gradients.params()
        before = [param.detach().clone() for param in params]
        result = super(Distributed, self).step(closure)
        grads = [param.grad for param in params]
        # Until the ranks' changes are there, the parameters are as they were.
        for param, start in zip(params, before, strict=True):
            param.grad = param.detach() - start
            param.detach().copy_(start)
        self._gradients.start()
        deltas = self._gradients.take()
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad

        def update(params: list[torch.Tensor]) -> None:
            for param in params:
                param.detach().add_(deltas[param])

        return result, deltas, update
