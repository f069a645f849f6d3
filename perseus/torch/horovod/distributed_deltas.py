"""DistributedOptimizer for Adasum, which combines the results of steps in place of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from perseus.torch.horovod.deferred_updates import Update
from perseus.torch.horovod.distributed import Distributed


class DistributedDeltas(Distributed):
    """The optimizer for Adasum, which combines the changes by the ranks' steps, not gradients.

    It differs from Horovod's in two ways. The changes arise in step, not while backward runs, so
    gradients can be clipped or unscaled before. And it works with any process set.
    """

    _reduces_in_backward = False

    def synchronize(self) -> None:
        """Does nothing: gradients stay local to each rank."""

    def skip_synchronize(self) -> Any:
        """Raises AssertionError: a step without the reduction would make the ranks differ."""
        raise AssertionError("skip_synchronize is not supported with Adasum: step reduces")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's step and combines its changes with those of the other ranks."""
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
        gradients = self._gradients
        assert gradients is not None, "a rank that does not reduce changes defers no step"
        self._note_step()
        gradients.agree()
        params = gradients.params()
        before = [param.detach().clone() for param in params]
        result = super(Distributed, self).step(closure)
        grads = [param.grad for param in params]
        # The parameters keep their old values until the changes are reduced.
        for param, start in zip(params, before, strict=True):
            param.grad = param.detach() - start
            param.detach().copy_(start)
        gradients.start_reductions()
        deltas = gradients.take()
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad

        def update(params: list[torch.Tensor]) -> None:
            for param in params:
                param.detach().add_(deltas[param])

        return result, deltas, update
