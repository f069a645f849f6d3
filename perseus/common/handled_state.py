"""State whose values have handlers, which know how to save, restore and sync one kind of value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeAlias, TypeVar

import perseus_core
from perseus.common import objects
from perseus.common.elastic import BroadcastObject, ObjectState, check_names
from perseus.common.elastic_sampler import ElasticSampler
from perseus.common.process_sets import global_process_set
from perseus.common.state_sources import StateSources

__all__ = ["SAMPLERS", "HandledState", "Registry", "SamplerStateHandler", "StateHandler"]

T = TypeVar("T")


class StateHandler(Generic[T]):
    """Saves and restores one kind of value, and makes it the same on all ranks."""

    #: During a sync: the ranks that give the state; None if rank 0 gives it to all.
    sources: StateSources | None = None

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


#: Kinds of values and their handlers; the first one that fits is used.
Registry: TypeAlias = list[tuple[type, type[StateHandler[Any]]]]


class SamplerStateHandler(StateHandler[ElasticSampler]):
    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)
        self.save()

    def save(self) -> None:
        self._saved = self.value.state_dict()  # nothing in it is ever changed

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        state = objects.broadcast_object(self.value.state_dict(), 0, None, global_process_set)
        self.value.load_state_dict(state)

    def join_progress(self) -> None:
        is_committed = self.value.state_dict() == self._saved
        self.value.join_progress()
        if is_committed:
            self.save()


SAMPLERS: Registry = [(ElasticSampler, SamplerStateHandler)]


class HandledState(ObjectState):
    """Values by name, as attributes.

    Values that have a handler are synced from rank 0's present state. The others are plain.
    """

    _handlers: dict[str, StateHandler[Any]]

    def __init__(
        self, bcast_object: BroadcastObject, registry: Registry, values: dict[str, Any]
    ) -> None:
        check_names(type(self), values)
        handlers = {name: _handler_of(value, registry) for name, value in values.items()}
        # This must be the first attribute that is set: __setattr__ reads it.
        super().__setattr__(
            "_handlers", {name: handler for name, handler in handlers.items() if handler}
        )
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        plain = {name: value for name, value in values.items() if name not in self._handlers}
        super().__init__(bcast_object, perseus_core.rank, **plain)

    def save(self) -> None:
        self._finish_operations()  # invalid results must not be saved
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sources = self._sources
            handler.sync()
        # Save only when all are synced: if a rank is lost in between, restore must not mix the
        # states of two ranks.
        self._finish_operations()
        super().sync()
        for handler in self._handlers.values():
            handler.save()

    def reset(self) -> None:
        for handler in self._samplers():
            handler.value.reset()

    def join_progress(self) -> None:
        for handler in self._samplers():
            handler.join_progress()

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
        super().__setattr__(name, value)

    def _finish_operations(self) -> None:
        """Waits for operations that are under way, and raises their errors."""

    def _samplers(self) -> Iterable[SamplerStateHandler]:
        return (each for each in self._handlers.values() if isinstance(each, SamplerStateHandler))


def _handler_of(value: Any, registry: Registry) -> StateHandler[Any] | None:
    for kind, handler in registry:
        if isinstance(value, kind):
            return handler(value)
    return None
