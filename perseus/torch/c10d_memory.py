"""Memory of several tensors in one piece, which saves copies of what moves between ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from perseus.torch.row_major import is_row_major
from perseus_core import engine

__all__ = ["ResultPlace", "joined"]


class ResultPlace:
    """The memory of tensors that get the result of an operation, one after the other.

    If it is in one piece, the engine can write the result there. It does so only if the result has
    that size, which it does not know before.
    """

    def __init__(
        self, targets: Sequence[torch.Tensor], apart_from: torch.Tensor | None = None
    ) -> None:
        """`apart_from` is what the engine reads meanwhile; the place must not overlap with it."""
        memory = _in_one_piece(targets)
        if memory is not None and apart_from is not None and _share_storage(memory, apart_from):
            memory = None
        self._memory = memory

    def offer(self) -> list[tuple[int, int]] | None:
        """Returns the argument `offered` of engine.submit."""
        return None if self._memory is None else [(self._memory.data_ptr(), self._memory.numel())]

    def has_result(self, handle: int) -> bool:
        """Returns whether the result of the complete operation is in its place."""
        memory = self._memory
        return memory is not None and engine.result_address(handle) == memory.data_ptr()


def joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns pieces of bytes as one, which is a copy only if they are not one already."""
    memory = _in_one_piece(pieces)
    return torch.cat(list(pieces)) if memory is None else memory


def _in_one_piece(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Returns the memory of the tensors as bytes if they lie one after the other."""
    filled = [tensor for tensor in tensors if tensor.numel() > 0]
    if not filled:
        return None
    first = filled[0]
    end = first.data_ptr()
    for tensor in filled:
        if (
            not is_row_major(tensor)
            or tensor.data_ptr() != end
            or not _share_storage(tensor, first)
        ):
            return None
        end += tensor.nbytes
    storage = first.untyped_storage()
    begin = first.data_ptr()
    return torch.empty(0, dtype=torch.uint8, device=first.device).set_(
        storage, begin - storage.data_ptr(), (end - begin,), (1,)
    )


def _share_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
