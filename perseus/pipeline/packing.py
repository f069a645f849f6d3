"""A value between stages as one message, so that one receive, posted ahead, takes all of it.

A single floating-point tensor that wants a gradient and has no codec is sent as it is. Anything
else is packed into bytes: the length of a header, the header in JSON, then the tensors, each at a
multiple of ALIGNMENT bytes. The header has the structure, and of each tensor its dtype, its shape,
its codec and whether it wants a gradient. So shapes may differ from message to message.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from perseus.pipeline.codecs import CODECS, Codec
from perseus.pipeline.stage import Gradient
from perseus.pipeline.values import flatten, rebuilt

__all__ = ["pack", "pack_gradient", "unpack", "unpack_gradient"]

ALIGNMENT = 16
_LENGTH = 8


def pack(value: Any, codec: Codec | None) -> torch.Tensor:
    """Returns the message of a value, in CPU memory. May be the value itself.

    Raises TypeError for a value that cannot be sent.
    """
    if isinstance(value, torch.Tensor) and value.requires_grad and _goes_alone(value, codec):
        return value.detach().cpu()
    return _packed(value, codec)


def pack_gradient(gradient: Gradient, codec: Codec | None) -> torch.Tensor:
    """Returns the message of a gradient."""
    if len(gradient) == 1 and gradient[0] is not None and _goes_alone(gradient[0], codec):
        return gradient[0].detach().cpu()
    return _packed(gradient, codec)


def unpack_gradient(message: torch.Tensor) -> Gradient:
    """Returns the gradient of a message."""
    if message.dtype != torch.uint8:
        return [message]
    gradient: Gradient = unpack(message)
    return gradient


def _goes_alone(tensor: torch.Tensor, codec: Codec | None) -> bool:
    is_plain = tensor.layout is torch.strided and tensor.is_floating_point()
    return is_plain and (codec is None or not codec.suits(tensor))


def _packed(value: Any, codec: Codec | None) -> torch.Tensor:
    structure, tensors = flatten(value)
    described, parts = [], []
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_complex():
            raise TypeError(
                f"a value between stages holds a {tensor.layout} tensor of {tensor.dtype}; it must "
                "be dense and real"
            )
        plain = tensor.detach().cpu()
        used = codec if codec is not None and codec.suits(plain) else None
        coded = used.encode(plain) if used else [plain]
        described.append(
            {
                "dtype": _name(tensor.dtype),
                "shape": list(tensor.shape),
                "wants": tensor.requires_grad,
                "codec": used.name if used else None,
                "parts": [[_name(part.dtype), list(part.shape)] for part in coded],
            }
        )
        parts += coded
    header = json.dumps({"structure": structure, "tensors": described}).encode()
    return _joined(header, [_bytes(part) for part in parts])


def unpack(message: torch.Tensor) -> Any:
    """Returns the value of a message. Tensors that want a gradient are leaves that require it."""
    if message.dtype != torch.uint8:
        return message.requires_grad_()
    length = int(message[:_LENGTH].view(torch.int64))
    header = json.loads(bytes(message[_LENGTH : _LENGTH + length].numpy()))
    at = _aligned(_LENGTH + length)
    tensors = []
    for described in header["tensors"]:
        parts = []
        for name, shape in described["parts"]:
            dtype = getattr(torch, name)
            size = torch.Size(shape).numel() * dtype.itemsize
            # A view of a part of the message would keep all of it.
            parts.append(message[at : at + size].clone().view(dtype).view(shape))
            at = _aligned(at + size)
        dtype = getattr(torch, described["dtype"])
        codec = described["codec"]
        tensor = CODECS[codec].decode(parts, dtype) if codec else parts[0]
        tensor = tensor.view(described["shape"])
        tensors.append(tensor.requires_grad_() if described["wants"] else tensor)
    return rebuilt(header["structure"], tensors)


def _joined(header: bytes, parts: list[torch.Tensor]) -> torch.Tensor:
    begins = []
    end = _LENGTH + len(header)
    for part in parts:
        begins.append(_aligned(end))
        end = begins[-1] + len(part)
    message = torch.empty(end, dtype=torch.uint8)
    message[:_LENGTH] = torch.tensor([len(header)]).view(torch.uint8)
    message[_LENGTH : _LENGTH + len(header)] = torch.frombuffer(
        bytearray(header), dtype=torch.uint8
    )
    for begin, part in zip(begins, parts, strict=True):
        message[begin : begin + len(part)] = part
    return message


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
