"""The state of a PyTorch job: models, optimizers, samplers, and plain attributes."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import torch

from perseus.common.handled_state import (
    SAMPLERS,
    HandledState,
    Registry,
    SamplerStateHandler,
    StateHandler,
)
from perseus.torch.horovod.async_completion import wait_for_all
from perseus.torch.horovod.elastic.saved_copy import SavedCopy
from perseus.torch.horovod.elastic.sharing import share
from perseus.torch.horovod.functions import broadcast_object, outline_optimizer_state

__all__ = [
    "ModelStateHandler",
    "ObjectStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class _HasStateDict(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


S = TypeVar("S", bound=_HasStateDict)


class _StateDictHandler(StateHandler[S]):
    """Handles objects with state_dict and load_state_dict."""

    def __init__(self, value: S) -> None:
        super().__init__(value)
        self._saved = SavedCopy()
        self.save()

    def save(self) -> None:
        self._saved.update(self.value.state_dict())

    def restore(self) -> None:
        # Optimizers keep what they load, and the copy is written to at each commit.
        self.value.load_state_dict(self._saved.new())


class ModelStateHandler(_StateDictHandler[torch.nn.Module]):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def sync(self) -> None:
        share(self.value.state_dict().items(), self.sources)


class OptimizerStateHandler(_StateDictHandler[torch.optim.Optimizer]):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def sync(self) -> None:
        keeps = self.sources is not None and self.sources.has_state
        tensors = outline_optimizer_state(self.value, root_rank=0, keeps=keeps)
        share(tensors, self.sources)


class ObjectStateHandler(_StateDictHandler[_HasStateDict]):
    """Handles small objects with state_dict, such as a learning rate scheduler or a GradScaler."""

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root_rank=0))


#: torch.amp has had it since PyTorch 2.3, as the base of that of torch.cuda.amp.
_GRAD_SCALER: type = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, ObjectStateHandler),
    (_GRAD_SCALER, ObjectStateHandler),
    *SAMPLERS,
]


def get_handler_registry() -> Registry:
    return _registry


def set_handler_registry(registry: Registry) -> None:
    global _registry
    _registry = registry


class TorchState(HandledState):
    """`model`, `optimizer`, and what else is given by name, as attributes.

    Models, optimizers, learning rate schedulers, gradient scalers and ElasticSamplers have
    handlers: save copies their state, and sync gives all ranks rank 0's present one. Other values
    are plain: save keeps them as they are, so change them by assignment only.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        super().__init__(broadcast_object, _registry, values)

    def _finish_operations(self) -> None:
        wait_for_all()
