"""Gradient compression, which converts tensors before they are reduced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from perseus.common.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Reduces floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        compressed = tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor
        return compressed, tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class Compression:
    """The built-in compressions."""

    none = NoneCompressor
    fp16 = FP16Compressor
