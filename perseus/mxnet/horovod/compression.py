"""Gradient compression, which converts arrays before they are reduced."""

from __future__ import annotations

from typing import Any

import numpy as np

from perseus.common.compression import Compressor, NoneCompressor
from perseus.mxnet.engine import NDArray

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Reduces floating-point arrays as float16."""

    @staticmethod
    def compress(tensor: NDArray) -> tuple[NDArray, Any]:
        compressed = tensor.astype("float16", copy=False) if _is_floating(tensor.dtype) else tensor
        return compressed, tensor.dtype

    @staticmethod
    def decompress(tensor: NDArray, ctx: Any) -> NDArray:
        return tensor.astype(ctx, copy=False) if _is_floating(ctx) else tensor


def _is_floating(dtype: Any) -> bool:
    return np.issubdtype(np.dtype(dtype), np.floating)


class Compression:
    """The built-in compressions."""

    none = NoneCompressor
    fp16 = FP16Compressor
