"""Tensors as bytes: data that is only moved may have types that the engine does not know."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from perseus.torch.horovod.tensors import is_known
from perseus.torch.row_major import is_row_major, row_major

__all__ = ["bytes_of", "check_types", "deal", "movable"]


def movable(buffer: torch.Tensor) -> torch.Tensor:
    """Returns a row-major tensor itself if the engine knows its type, otherwise its bytes."""
    return buffer if is_known(buffer.dtype) else _bytes_at(buffer)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of the tensor in row-major order."""
    return _bytes_at(row_major(tensor))


def deal(data: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    """Copies bytes into tensors, one after the other."""
    wanted = sum(target.numel() * target.element_size() for target in targets)
    if wanted != data.numel():
        raise ValueError(f"{data.numel()} bytes arrived for outputs of {wanted} bytes")
    begin = 0
    for target in targets:
        end = begin + target.numel() * target.element_size()
        if end > begin:
            _fill(target.detach(), data[begin:end])
        begin = end


def check_types(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Raises RuntimeError, as Gloo does, unless all have one type.

    Complex numbers and pairs of real ones go together, as elsewhere in torch.distributed.
    """
    tensors = [*inputs, *outputs]
    for tensor in tensors[1:]:
        if tensor.dtype != tensors[0].dtype and _element(tensor) != _element(tensors[0]):
            raise RuntimeError(
                f"the tensors of the call have the types {tensors[0].dtype} and {tensor.dtype}; "
                "they must have the same type"
            )


def _element(tensor: torch.Tensor) -> torch.dtype:
    return tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype


def _fill(target: torch.Tensor, data: torch.Tensor) -> None:
    if target.data_ptr() == data.data_ptr():
        return
    if is_row_major(target):
        _bytes_at(target).copy_(data)
    else:
        copy = torch.empty(target.shape, dtype=target.dtype, device=target.device)
        _bytes_at(copy).copy_(data)
        target.copy_(copy)


def _bytes_at(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory of a row-major tensor.

    It does not use Tensor.view, which refuses some types.
    """
    size = tensor.element_size()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset() * size, (tensor.numel() * size,), (1,)
    )
