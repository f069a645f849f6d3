"""The state of a PyTorch job: models, optimizers, samplers, and plain attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import torch

import perseus_core
from perseus.common.handled_state import (
    SAMPLERS,
    HandledState,
    Registry,
    SamplerStateHandler,
    StateHandler,
)
from perseus.torch.horovod.async_completion import wait_for_all
from perseus.torch.horovod.elastic.saved_copy import SavedCopy, is_plain
from perseus.torch.horovod.elastic.sharing import share
from perseus.torch.horovod.elastic.values_in_place import Marks, ValuesInPlace
from perseus.torch.horovod.forward_overlap import UpdatesInForward
from perseus.torch.horovod.functions import broadcast_object, outline_optimizer_state
from perseus_core import driver_link

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


class _LargeStateHandler(_StateDictHandler[S]):
    """Handles objects whose state is in large tensors, which a save may leave where they are."""

    copies = True
    marks: Marks | None = None
    _has_copy = True

    def save(self) -> None:
        if self.marks is None:
            return super().save()
        large, rest = self._parts()
        if self.copies:
            super().save()
        else:
            self._saved.update(rest)
        self._has_copy = self.copies
        self.marks = Marks(large)

    def restore(self) -> None:
        if self._has_copy:
            super().restore()
        else:
            self._load_small(self._saved.new())
        if self.marks is not None:
            self.mark()

    def mark(self) -> None:
        self.marks = Marks(self._parts()[0])

    def has_copy(self) -> bool:
        return self._has_copy

    def has_changed(self) -> bool:
        return self.marks is None or self.marks.differ_from(self._parts()[0])

    def copy(self) -> None:
        super().save()
        self._has_copy = True

    def _parts(self) -> tuple[Any, Any]:
        """Returns the large tensors, which steps write to, and a state dict of the rest."""
        raise NotImplementedError

    def _load_small(self, state: Any) -> None:
        """Loads a state dict of the rest, and leaves the large tensors as they are."""
        raise NotImplementedError


class ModelStateHandler(_LargeStateHandler[torch.nn.Module]):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def _parts(self) -> tuple[Any, Any]:
        rest = self.value.state_dict()
        parameters = {
            parameter.data_ptr()
            for parameter in self.value.parameters()
            if type(parameter) is torch.nn.Parameter and parameter.layout is torch.strided
        }
        large = [
            rest.pop(name)
            for name, each in list(rest.items())
            if is_plain(each) and each.data_ptr() in parameters
        ]
        return large, rest

    def _load_small(self, state: Any) -> None:
        if state:
            self.value.load_state_dict(state, strict=False)

    def sync(self) -> None:
        share(self.value.state_dict().items(), self.sources)


class OptimizerStateHandler(_LargeStateHandler[torch.optim.Optimizer]):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def _parts(self) -> tuple[Any, Any]:
        rest = dict(self.value.state_dict())
        return rest.pop("state", None), rest

    def _load_small(self, state: Any) -> None:
        self.value.load_state_dict({**self.value.state_dict(), **state})

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

    Args:
      copies: if it is False, a save in an elastic job copies no parameters and no state of
        optimizers. After a failure, they are those of the last commit still, because a collective
        fails before the optimizer's step begins; a rank that has begun a step takes another's. This
        is for programs that commit each step and change parameters in optimizer.step() alone. If an
        operation comes between step and commit, the state warns, and keeps copies from then on.
        restore() raises RuntimeError if the parameters are not those of the last commit any more.

    Raises TypeError if `copies` is no bool, and ValueError if it is False without an optimizer or
    with overlap_forward.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        copies: bool = True,
        **kwargs: Any,
    ) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        super().__init__(broadcast_object, _registry, values)
        self._in_place: ValuesInPlace | None = None
        if not isinstance(copies, bool):
            raise TypeError(f"copies is {copies!r}; it must be True or False")
        if copies:
            return
        self._check_optimizers()
        # In other jobs no driver makes rank 0 one that has the last commit.
        if driver_link.is_elastic():
            for handler in self._large():
                handler.mark()
            self._in_place = ValuesInPlace(self._large())

    def save(self) -> None:
        if self._in_place is not None:
            self._in_place.commit_begins()
        super().save()
        if self._in_place is not None:
            self._in_place.has_saved()

    def restore(self) -> None:
        if self._in_place is None:
            return super().restore()
        if self._in_place.are_lost() and not self._has_lost():
            raise RuntimeError(
                "restore cannot go back to the last commit: parameters have changed since, and "
                "copies is False. Use copies=True to restore what steps have changed."
            )
        super().restore()
        self._in_place.has_saved()

    def recover(self) -> None:
        if self._in_place is not None and self._in_place.are_lost():
            self._note_lost()
        super().recover()

    def sync(self) -> None:
        if self._in_place is not None and perseus_core.rank() != 0:
            if self._in_place.are_lost():
                self._note_lost()
            elif not self._has_lost():
                self._in_place.copy()  # if rank 0 is lost meanwhile
        super().sync()
        if self._in_place is not None:
            self._in_place.has_saved()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        in_place: ValuesInPlace | None = self.__dict__.get("_in_place")
        if in_place is not None and name in self._handlers:
            in_place.watch_optimizers()

    def _finish_operations(self) -> None:
        wait_for_all()

    def _large(self) -> Iterator[_LargeStateHandler[Any]]:
        handlers = self._handlers.values()
        return (each for each in handlers if isinstance(each, _LargeStateHandler))

    def _check_optimizers(self) -> None:
        optimizers = [
            each.value for each in self._large() if isinstance(each, OptimizerStateHandler)
        ]
        if not optimizers:
            raise ValueError(
                "copies is False without an optimizer; it must be True, or the state must have the "
                "optimizer whose steps change the parameters"
            )
        if any(isinstance(optimizer, UpdatesInForward) for optimizer in optimizers):
            raise ValueError(
                "copies is False for an optimizer with overlap_forward; it must be True, since "
                "such steps end after other operations have begun"
            )
