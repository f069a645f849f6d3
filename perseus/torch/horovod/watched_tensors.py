"""Tensors that notice every use of them from Python, so that something can be done before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch


class Updates(Protocol):
    """What is to be done before tensors are used."""

    def apply_to(self, tensors: Iterable[torch.Tensor]) -> None: ...


_HARMLESS_PROPERTIES = (
    *("requires_grad", "is_leaf", "dtype", "device", "layout", "shape", "ndim"),
    *("is_sparse", "is_cpu", "is_cuda"),
)
_HARMLESS_METHODS = (
    *("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex"),
)
#: What may be asked of a tensor without a notice: none of it depends on its elements.
_HARMLESS = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in ("grad", *_HARMLESS_PROPERTIES)),
        *(getattr(torch.Tensor, name) for name in _HARMLESS_METHODS),
        torch.Tensor.grad.__set__,  # type: ignore[attr-defined]
        torch.Tensor.grad.__delete__,  # type: ignore[attr-defined]
    ]
)


def can_watch(tensor: torch.Tensor) -> bool:
    """Whether the tensor can be made to: one of a class of its own may not."""
    return type(tensor) in _WATCHED


def watch(tensor: torch.Tensor, updates: Updates) -> None:
    """Calls updates.apply_to([tensor]) before the tensor's next use, in whatever thread.

    Not within torch._C.DisableTorchFunctionSubclass(), where it is as any other.
    """
    tensor._perseus_updates = updates  # type: ignore[attr-defined]
    tensor.__class__ = _WATCHED[type(tensor)]


def unwatch(tensor: torch.Tensor) -> None:
    """Takes back watch."""
    tensor.__dict__.pop("_perseus_updates", None)
    tensor.__class__ = _ORDINARY.get(type(tensor), type(tensor))


def _before_use(tensors: Iterable[Any]) -> None:
    """Tensors of one of the classes below are being used."""
    for tensor in tensors:
        updates: Updates | None = tensor.__dict__.get("_perseus_updates")
        if updates is not None:
            updates.apply_to([tensor])
        else:
            unwatch(tensor)  # a copy: it has the class, and nothing that is put off


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


#: By the classes of tensors that can be made to notice their use, those that do.
_WATCHED: dict[type, type] = {
    cls: _watched_class(cls) for cls in (torch.Tensor, torch.nn.Parameter)
}
_ORDINARY = {watched: ordinary for ordinary, watched in _WATCHED.items()}
