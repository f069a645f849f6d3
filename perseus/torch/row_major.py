"""Tensors as memory that holds their values in row-major order, which is what the engine moves.

PyTorch delays some work: a conjugated or negated view has only a bit that says so, and the memory
of the original; a tensor of zeros that autograd makes may have no memory at all. The engine sees
memory alone, so all of that is done here.
"""

from __future__ import annotations

import torch

__all__ = ["is_row_major", "row_major"]


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor if its memory is what it holds; otherwise a copy whose is.

    Autograd does not follow what it returns.
    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    if is_row_major(tensor):
        return tensor
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def is_row_major(tensor: torch.Tensor) -> bool:
    """Returns whether row_major gives the tensor's own memory."""
    # Called for each small gradient, so without a function for what row_major asks as well.
    return tensor.is_contiguous() and not (
        tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()
    )
