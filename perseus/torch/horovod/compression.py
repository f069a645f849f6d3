"""Gradient compression, which converts tensors before they are reduced."""

from __future__ import annotations

from typing import Any

import torch

from perseus.common.compression import Compressor, NoneCompressor

__all__ = [
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "checked_compression",
]


class FP16Compressor(Compressor):
    """Reduces floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        compressed = tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor
        return compressed, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx) if ctx.is_floating_point else tensor


def checked_compression(compression: type[Compressor]) -> type[Compressor]:
    """Returns the compression; raises TypeError if it is not one."""
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise TypeError(
            f"compression is {compression!r}; it takes a Compressor, such as Compression.fp16"
        )
    return compression


class Compression:
    """The built-in compressions."""

    none = NoneCompressor
    fp16 = FP16Compressor
