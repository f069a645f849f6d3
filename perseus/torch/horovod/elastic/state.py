"""The state of a PyTorch job: models, optimizers, samplers, and plain attributes."""

from __future__ import annotations

import copy
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch

from perseus.common.elastic import ObjectState
from perseus.torch.horovod.async_completion import wait_for_all
from perseus.torch.horovod.elastic.sampler import ElasticSampler
from perseus.torch.horovod.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from perseus_core import rank

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]

T = TypeVar("T")


class _HasStateDict(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


S = TypeVar("S", bound=_HasStateDict)


class StateHandler(Generic[T]):
    """Saves and restores one kind of value, and makes it the same on all ranks."""

    def __init__(self, value: T) -> None:
        self.value = value

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def set_value(self, value: T) -> None:
        self.value = value
        self.save()


class _StateDictHandler(StateHandler[S]):
    """Handles objects with state_dict and load_state_dict."""

    def __init__(self, value: S) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # Optimizers keep references to what they load.
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler[torch.nn.Module]):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(_StateDictHandler[torch.optim.Optimizer]):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


class SamplerStateHandler(_StateDictHandler[ElasticSampler]):
    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root_rank=0))


#: Kinds of values and their handlers; the first one that fits is used.
Registry: TypeAlias = list[tuple[type, type[StateHandler[Any]]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    return _registry


def set_handler_registry(registry: Registry) -> None:
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """`model`, `optimizer`, samplers and what else is given by name, as attributes.

    Values that the registry has a handler for are synced from rank 0's present state. The others
    are plain: sync gives rank 0's last saved ones.
    """

    _handlers: dict[str, StateHandler[Any]]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: _handler_of(value) for name, value in values.items()}
        # This must be the first attribute that is set: __setattr__ reads it.
        super().__setattr__(
            "_handlers", {name: handler for name, handler in handlers.items() if handler}
        )
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        plain = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(broadcast_object, rank, **plain)

    def save(self) -> None:
        wait_for_all()  # invalid results must not be saved
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()
        # Save only when all are synced: if a rank is lost in between, restore must not mix the
        # states of two ranks.
        wait_for_all()
        for handler in self._handlers.values():
            handler.save()

    def reset(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
        super().__setattr__(name, value)


def _handler_of(value: Any) -> StateHandler[Any] | None:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
