"""The memory of tensors for the engine, which takes addresses.

A tensor of bytes that shares another's memory would take longer to make than the engine takes for a
small operation, so memory is described by spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from perseus.torch.c10d_bytes import bytes_of
from perseus.torch.row_major import is_row_major
from perseus_core import engine

__all__ = ["ResultPlace", "Span", "joined", "span_of"]


class Span(NamedTuple):
    """Memory that the row-major `owner`, or tensors from that one on, fill."""

    address: int
    nbytes: int
    owner: torch.Tensor

    def is_apart_from(self, other: Span) -> bool:
        return (
            self.address + self.nbytes <= other.address
            or other.address + other.nbytes <= self.address
        )


def span_of(tensor: torch.Tensor) -> Span:
    """Returns the memory of a row-major tensor."""
    return Span(tensor.data_ptr(), tensor.nbytes, tensor)


class ResultPlace:
    """The memory of tensors that get the result of an operation, one after the other.

    If it is in one piece, the engine can write the result there. It does so only if the result has
    that size, which it does not know before.
    """

    def __init__(
        self, targets: Sequence[torch.Tensor], source: Span, *, may_overlap: bool = False
    ) -> None:
        """`source` is what the engine reads meanwhile."""
        span = _in_one_piece(targets)
        if span is not None and (
            span.owner.device != source.owner.device
            or not (may_overlap or span.is_apart_from(source))
        ):
            span = None
        self._span = span

    def offer(self) -> list[tuple[int, int]] | None:
        """Returns the argument `offered` of engine.submit."""
        return None if self._span is None else [(self._span.address, self._span.nbytes)]

    def has_result(self, handle: int) -> bool:
        """Returns whether the result of the complete operation is in its place."""
        return self._span is not None and engine.result_address(handle) == self._span.address


def joined(pieces: Sequence[torch.Tensor]) -> Span:
    """Returns the bytes of row-major tensors, one after the other; without a copy if they lie so.

    The tensors must live as long as the span is used.
    """
    span = _in_one_piece(pieces)
    return span_of(torch.cat([bytes_of(piece) for piece in pieces])) if span is None else span


def _in_one_piece(tensors: Sequence[torch.Tensor]) -> Span | None:
    """Returns the memory of the tensors if they lie one after the other."""
    filled = [tensor for tensor in tensors if tensor.numel() > 0]
    if not filled:
        return None
    begin = end = filled[0].data_ptr()
    for tensor in filled:
        if (
            not is_row_major(tensor)
            or tensor.data_ptr() != end
            or not (tensor is filled[0] or _share_storage(tensor, filled[0]))
        ):
            return None
        end += tensor.nbytes
    return Span(begin, end - begin, filled[0])


def _share_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
