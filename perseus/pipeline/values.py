"""What passes between stages: a tensor, or tensors in nested tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = [
    "cut",
    "described",
    "flatten",
    "joined",
    "mapped",
    "rebuilt",
    "rows",
    "tensors_of",
]

_PLAIN = (bool, int, float, str, type(None))


def flatten(value: Any) -> tuple[Any, list[torch.Tensor]]:
    """Returns the structure of a value, which JSON can write, and its tensors.

    Raises TypeError for anything but tensors and plain values in tuples, lists and dicts.
    """
    tensors: list[torch.Tensor] = []
    return _outlined(value, tensors), tensors


def _outlined(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_outlined(part, tensors) for part in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _outlined(part, tensors) for key, part in value.items()}}
    if isinstance(value, _PLAIN):
        return {"plain": value}
    raise TypeError(
        f"a value between stages holds {type(value).__name__}; it must be made of tensors, tuples, "
        "lists, dicts whose keys are str, numbers and str"
    )


def rebuilt(structure: Any, tensors: Sequence[Any]) -> Any:
    """Returns the value that flatten was given, with these in place of its tensors."""
    ((kind, inner),) = structure.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "tuple":
        return tuple(rebuilt(part, tensors) for part in inner)
    if kind == "list":
        return [rebuilt(part, tensors) for part in inner]
    if kind == "dict":
        return {key: rebuilt(part, tensors) for key, part in inner.items()}
    return inner


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of a value, in order."""
    return flatten(value)[1]


def mapped(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Returns the value with each tensor replaced by what the function gives for it."""
    structure, tensors = flatten(value)
    return rebuilt(structure, [function(tensor) for tensor in tensors])


def described(value: Any) -> str:
    """Returns dtypes and shapes, such as "float32[4, 8]", for errors."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(map(described, value))
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {described(part)}" for key, part in value.items()) + "}"
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__


def rows(name: str, value: Any) -> int:
    """Returns the size of the first dimension, which all tensors of a batch have in common."""
    tensors = tensors_of(value)
    if not tensors:
        raise TypeError(f"{name} is {described(value)}; it must hold a tensor")
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tensors}
    if len(sizes) > 1 or None in sizes:
        raise ValueError(
            f"{name} is {described(value)}; its tensors must have a first dimension of the same "
            "size, that of the batch"
        )
    return int(tensors[0].shape[0])


def cut(name: str, batch: Any, microbatches: int) -> list[Any]:
    """Cuts a batch into micro-batches along the first dimension; their sizes differ by 1 at most.

    Raises ValueError if the batch has fewer rows than micro-batches.
    """
    size = rows(name, batch)
    if size < microbatches:
        raise ValueError(
            f"{name} has {size} rows; it must have at least {microbatches}, one for each "
            "micro-batch"
        )
    structure, tensors = flatten(batch)
    parts = [torch.tensor_split(tensor, microbatches) for tensor in tensors]
    return [rebuilt(structure, [part[i] for part in parts]) for i in range(microbatches)]


def joined(parts: Sequence[Any]) -> Any:
    """Joins the outputs of micro-batches along the first dimension; the reverse of cut.

    A tensor without dimensions becomes one with an element for each micro-batch.
    """
    structure, _ = flatten(parts[0])
    columns = zip(*(tensors_of(part) for part in parts), strict=True)
    whole = [
        torch.cat([tensor if tensor.dim() else tensor[None] for tensor in column])
        for column in columns
    ]
    return rebuilt(structure, whole)
