"""Tensors that call a function before every use from Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch


class Updates(Protocol):
    """Updates that must be applied before tensors are used."""

    def apply_to(self, tensors: Iterable[torch.Tensor]) -> None: ...


_HARMLESS_PROPERTIES = (
    *("requires_grad", "is_leaf", "dtype", "device", "layout", "shape", "ndim"),
    *("is_sparse", "is_cpu", "is_cuda"),
)
_HARMLESS_METHODS = (
    *("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex"),
)
#: Uses of a tensor that do not depend on its elements, so that nothing is called before them.
_HARMLESS = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in ("grad", *_HARMLESS_PROPERTIES)),
        *(getattr(torch.Tensor, name) for name in _HARMLESS_METHODS),
        torch.Tensor.grad.__set__,
        torch.Tensor.grad.__delete__,
    ]
)


def can_watch(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor can be watched: a subclass of torch.Tensor cannot."""
    return type(tensor) in _WATCHED


def watch(tensor: torch.Tensor, updates: Updates) -> None:
    """Has updates.apply_to([tensor]) called before the tensor's next use, in any thread.

    Uses within torch._C.DisableTorchFunctionSubclass() do not call it.
    """
    tensor._perseus_updates = updates
    tensor.__class__ = _WATCHED[type(tensor)]


def unwatch(tensor: torch.Tensor) -> None:
    """Undoes watch."""
    tensor.__dict__.pop("_perseus_updates", None)
    tensor.__class__ = _ORDINARY.get(type(tensor), type(tensor))


def _before_use(tensors: Iterable[Any]) -> None:
    """Called before these tensors, of the classes below, are used."""
    for tensor in tensors:
        updates: Updates | None = tensor.__dict__.get("_perseus_updates")
        if updates is not None:
            updates.apply_to([tensor])
        else:
            unwatch(tensor)  # a copy, which has the class, but no deferred update


def _watched_in(value: Any) -> Iterator[Any]:
    if type(value) in _ORDINARY:
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _watched_in(inner)
    elif isinstance(value, dict):
        yield from _watched_in(list(value.values()))


def _watched_class(base: Any) -> Any:
    class Watched(base):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            used = [] if func in _HARMLESS else list(_watched_in((args, kwargs)))
            if not used:
                return super().__torch_function__(func, types, args, kwargs or {})
            _before_use(used)
            return func(*args, **(kwargs or {}))

        def __deepcopy__(self, memo: Any) -> Any:
            _before_use([self])
            return self.__deepcopy__(memo)

        def __reduce_ex__(self, protocol: Any) -> Any:
            _before_use([self])
            return self.__reduce_ex__(protocol)

    Watched.__name__ = Watched.__qualname__ = base.__name__
    Watched.__module__ = base.__module__
    return Watched


#: From classes of tensors that can be watched to their subclasses for watched ones.
_WATCHED: dict[type, type] = {
    cls: _watched_class(cls) for cls in (torch.Tensor, torch.nn.Parameter)
}
_ORDINARY = {watched: ordinary for ordinary, watched in _WATCHED.items()}
