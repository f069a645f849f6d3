"""How activations, and their gradients, look on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from perseus.torch.horovod.compression import Compression

__all__ = ["CODECS", "Codec", "find_codec"]

_WIDE = (torch.float32, torch.float64)


class Codec(NamedTuple):
    """encode gives the tensors to send in place of one of float32 or float64; decode takes them
    and the original dtype."""

    name: str
    encode: Callable[[torch.Tensor], list[torch.Tensor]]
    decode: Callable[[list[torch.Tensor], torch.dtype], torch.Tensor]

    def suits(self, tensor: torch.Tensor) -> bool:
        """Returns whether the codec makes the tensor smaller; others travel as they are."""
        return tensor.dtype in _WIDE and tensor.numel() > 0


def _to_half(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [Compression.fp16.compress(tensor)[0]]


def _from_half(parts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    restored: torch.Tensor = Compression.fp16.decompress(parts[0], dtype)
    return restored


def _to_bfloat16(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to(torch.bfloat16)]


def _cast(parts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return parts[0].to(dtype)


def _to_rows(tensor: torch.Tensor) -> list[torch.Tensor]:
    """A row, which is what the last dimension counts through, becomes int8 and one float32 scale.

    An element is off by at most the row's largest magnitude / 254, and float32's rounding. A row
    with a NaN or infinity becomes NaN as a whole, so that it does not go unnoticed.
    """
    table = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)
    scale = (table.abs().amax(dim=1, keepdim=True) / 127).to(torch.float32)
    scale = torch.where(torch.isfinite(scale), scale, torch.nan)
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale)).to(table.dtype)
    return [(table / divisor).nan_to_num(0.0).round().clamp(-127, 127).to(torch.int8), scale]


def _from_rows(parts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    whole, scale = parts
    return whole.to(dtype) * scale.to(dtype)


CODECS = {
    "fp16": Codec("fp16", _to_half, _from_half),
    "bf16": Codec("bf16", _to_bfloat16, _cast),
    "int8": Codec("int8", _to_rows, _from_rows),
}


def find_codec(codec: Any) -> Codec | None:
    """Returns the codec of a name or of hvd.Compression; None for no codec.

    Raises ValueError if there is none of this name.
    """
    if codec is None or codec is Compression.none or codec == "none":
        return None
    if codec is Compression.fp16:
        return CODECS["fp16"]
    if not isinstance(codec, str) or codec not in CODECS:
        raise ValueError(f"codec is {codec!r}; it must be None or one of {', '.join(CODECS)}")
    return CODECS[codec]
