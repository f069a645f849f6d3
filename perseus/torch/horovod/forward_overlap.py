"""DistributedOptimizer(overlap_forward=True), whose steps are finished by the next forward pass.

Communication then overlaps with the code after a step, and with the forward pass up to the layer
that a gradient belongs to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from perseus.torch.horovod.deferred_updates import DeferredUpdates
from perseus.torch.horovod.distributed import Distributed
from perseus.torch.horovod.watched_tensors import can_watch

if TYPE_CHECKING:
    _Next = Distributed
else:
    _Next = object


class UpdatesInForward(_Next):
    """Comes before Distributed; defers the updates of a step while its gradients are reduced."""

    def _distribute(self, *args: Any) -> None:
        self._updates: DeferredUpdates | None = None
        super()._distribute(*args)
        if self._gradients is not None:
            self._updates = DeferredUpdates(self._gradients)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's step; parameters are updated when they are needed.

        It behaves as without overlap_forward if there is a closure or a step hook, within
        skip_synchronize, after synchronize, and while torch.compile is in use.
        """
        self.apply_updates()
        is_reduced = self._synchronized or not self._should_synchronize
        if closure is not None or is_reduced or self._updates is None or not _can_defer(self):
            return super().step(closure)
        result, reduced, update = self._step_later()
        self._updates.defer(reduced, update)
        return result

    step.hooked = True  # type: ignore[attr-defined]

    def apply_updates(self) -> None:
        """Finishes the last step, and waits for the gradients that it needs."""
        if self._updates is not None:
            self._updates.apply()

    def synchronize(self) -> None:
        """Waits until all gradients are reduced, for example to clip them before step."""
        self.apply_updates()
        super().synchronize()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients. Those that the last step still needs are set to None."""
        if self._updates is not None and self._updates.are_under_way():
            self._updates.keep_gradients()
            super(Distributed, self).zero_grad(*args, **kwargs)
        else:
            super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads the optimizer's state, and restarts the count of backward passes."""
        self.apply_updates()
        super().load_state_dict(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; the deferred updates of the last step do not see it."""
        self.apply_updates()
        super().add_param_group(param_group)

    def register_step_pre_hook(self, hook: Any) -> Any:
        """Registers a hook; it does not see the deferred updates of the last step."""
        self.apply_updates()
        return super().register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        """Registers a hook; it does not see the deferred updates of the last step."""
        self.apply_updates()
        return super().register_step_post_hook(hook)

    @property
    def state(self) -> Any:
        """The optimizer's state by parameter, after all updates of the last step."""
        if self._updates is not None and not self._updates.are_settling_here():
            self._updates.apply()
        return self.__dict__["state"]

    @state.setter
    def state(self, value: Any) -> None:
        self.__dict__["state"] = value


def _can_defer(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether deferred updates, one by one, give the same result as a whole step now."""
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    is_scaled = getattr(optimizer, "grad_scale", None) is not None or (
        getattr(optimizer, "found_inf", None) is not None
    )
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return not (
        any(hooks)
        or is_scaled
        or any(group.get("differentiable") for group in optimizer.param_groups)
        or not all(map(can_watch, params))
        or _has_compiled()
    )


def _has_compiled() -> bool:
    """Returns whether torch.compile is in use.

    Compiled code uses all of its parameters at once, so nothing is gained by deferring. It also
    depends on the class of the parameters, so it would be compiled again.
    """
    dynamo = sys.modules.get("torch._dynamo")
    counters = getattr(getattr(dynamo, "utils", None), "counters", None)
    return counters is not None and counters["frames"]["total"] > 0
