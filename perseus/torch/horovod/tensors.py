"""PyTorch's tensors as the engine takes them: an address, a shape, a number for the type."""

from __future__ import annotations

import torch

from perseus.common.process_sets import ProcessSet
from perseus_core import DataType, _engine

_NUMBERS = {
    getattr(torch, member.name.lower()): int(member)
    for member in DataType
    if hasattr(torch, member.name.lower())  # uint16 came with torch 2.3
}


def dtype_number(tensor: torch.Tensor) -> int:
    """The engine's number for the element type; ValueError for a tensor that cannot be sent."""
    number = _NUMBERS.get(tensor.dtype)
    if number is None or tensor.layout is not torch.strided:
        kind = "" if tensor.layout is torch.strided else f" with layout {tensor.layout}"
        raise ValueError(f"Tensor type {tensor.type()}{kind} is not supported.")
    if not tensor.is_cpu:
        raise ValueError(
            f"the tensor is on {tensor.device}; this build of Perseus moves CPU tensors only"
        )
    return number


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it can be sent from where it is, else a row-major copy."""
    dtype_number(tensor)
    return tensor.detach().contiguous()


def described(
    source: torch.Tensor, target: torch.Tensor | None = None
) -> tuple[int, int, tuple[int, ...], int]:
    """What _engine.submit takes for a tensor and where its result goes, if that is known."""
    output = 0 if target is None else target.data_ptr()
    return source.data_ptr(), output, source.shape, dtype_number(source)


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """A row-major tensor of this shape and type."""
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def take_result(handle: int, index: int = 0) -> torch.Tensor:
    """Result `index`, which the engine allocated, without a copy."""
    return torch.from_dlpack(_engine.Result(handle, index))


def set_id(process_set: ProcessSet) -> int:
    """The engine's number of the set; ValueError if it is not registered."""
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered; give it to init or add_process_set")
    return process_set.process_set_id
