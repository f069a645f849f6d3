"""Tensors that ranks which lack the state of a job get from those that have it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from perseus.common.state_sources import Part, StateSources, left_by
from perseus.torch.horovod.functions import broadcast_parameters

__all__ = ["share"]


def share(named: Iterable[tuple[str, torch.Tensor]], sources: StateSources | None) -> None:
    """Gives all ranks the tensors of rank 0, in place.

    Tensors in CPU memory that ranks have alike come from the sources, others from rank 0: in GPU
    memory, NCCL would have to meet for each source anew.
    """
    tensors = dict(sorted(named, key=lambda pair: pair[0]))
    broadcast_parameters(left_by(sources, tensors, _part_of), root_rank=0)


def _part_of(tensor: torch.Tensor) -> Part | None:
    """Returns a tensor's memory; None if the engine cannot work on it as it is."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_cpu
    if not is_plain or tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous() or tensor.numel() == 0:
        return None
    data = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return Part(f"{tensor.dtype} {tuple(tensor.shape)}", data)
