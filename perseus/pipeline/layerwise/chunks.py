"""Chunks of mini-batches: cut from the data, and packed into one message each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from perseus.pipeline.layerwise.plan import Plan

__all__ = ["Batches", "Chunk", "count", "of_data", "pack", "unpack"]

#: Mini-batches with a length, or a function that returns those of an epoch, counted from 0.
Batches = Any
_ALIGNMENT = 64
_DTYPES = {
    str(dtype): dtype
    for dtype in (
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
}


@dataclass
class Chunk:
    """Mini-batches that go from stage to stage together.

    Attributes:
      number: in the stream, from 0.
      batches: tensors [rows, ...].
      targets: one for each batch, or None.
      copied: what the stage that sends it lets the next one copy, after it worked on this chunk.
    """

    number: int
    batches: list[torch.Tensor]
    targets: list[torch.Tensor | None]
    copied: dict[str, torch.Tensor]


def count(batches: Batches) -> int:
    """Returns the number of mini-batches in an epoch.

    Raises TypeError or ValueError if they are not such mini-batches.
    """
    of_epoch = batches(0) if callable(batches) else batches
    try:
        found = len(of_epoch)
    except TypeError:
        raise TypeError(
            f"batches is {type(of_epoch).__name__}; it must have a length and be iterable anew for "
            "each epoch, or be a function of the epoch that returns such"
        ) from None
    if found == 0:
        raise ValueError("batches is empty; it must have one mini-batch or more")
    return found


def of_data(batches: Batches, plan: Plan, begin: int) -> Iterator[Chunk]:
    """Yields the chunks of the stream from number `begin` on."""
    flat = _flat(batches, plan, plan.batches(begin).start)
    for number in range(begin, plan.total):
        if plan.batches(number).start == 0 and number != begin:
            flat = _flat(batches, plan, 0)
        pairs = [next(flat) for _ in plan.batches(number)]
        yield Chunk(number, [batch for batch, _ in pairs], [target for _, target in pairs], {})


def _flat(
    batches: Batches, plan: Plan, begin: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Yields the mini-batches of one share of the stream, from number `begin` on."""
    first_epoch, skipped = divmod(begin, plan.per_epoch)
    for epoch in range(first_epoch, plan.epochs):
        position = -1
        for position, one in enumerate(batches(epoch) if callable(batches) else batches):
            if position >= plan.per_epoch:
                break
            if epoch > first_epoch or position >= skipped:
                yield _pair(one, epoch, position)
        if position + 1 != plan.per_epoch:
            found = f"{position + 1}" if position < plan.per_epoch else "more"
            raise ValueError(
                f"epoch {epoch} has {found} mini-batches; it must have {plan.per_epoch}, the "
                "length of epoch 0"
            )


def _pair(one: Any, epoch: int, position: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    parts: Sequence[Any] = one if isinstance(one, (list, tuple)) else (one,)
    if len(parts) not in (1, 2) or not all(isinstance(part, torch.Tensor) for part in parts):
        raise TypeError(
            f"mini-batch {position} of epoch {epoch} is {type(one).__name__}; it must be a tensor, "
            "or a pair of a tensor and its target"
        )
    if parts[0].dim() == 0 or len(parts[0]) == 0:
        raise ValueError(
            f"mini-batch {position} of epoch {epoch} has the shape {tuple(parts[0].shape)}; it "
            "must have one row or more"
        )
    return parts[0], parts[1] if len(parts) == 2 else None


def pack(chunk: Chunk) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the chunk as one array of bytes: length of the header, header, tensors."""
    tensors = [*chunk.batches, *(t for t in chunk.targets if t is not None)]
    tensors += chunk.copied.values()
    header = json.dumps(
        {
            "number": chunk.number,
            "batches": len(chunk.batches),
            "targets": [target is not None for target in chunk.targets],
            "copied": list(chunk.copied),
            "tensors": [[str(tensor.dtype), list(tensor.shape)] for tensor in tensors],
        }
    ).encode()
    places = list(_places(8 + len(header), map(_size, tensors)))
    packed = torch.empty(places[-1] + _size(tensors[-1]), dtype=torch.uint8)
    packed[:8].view(torch.int64).fill_(len(header))
    packed[8 : 8 + len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    for place, tensor in zip(places, tensors, strict=True):
        _part(packed, place, tensor.dtype, tensor.shape).copy_(tensor)
    result: np.ndarray[Any, np.dtype[np.uint8]] = packed.numpy()
    return result


def unpack(message: np.ndarray[Any, np.dtype[np.uint8]]) -> Chunk:
    """Returns the chunk in a message. Its tensors lie in the message's memory."""
    packed = torch.from_numpy(message)
    length = int(packed[:8].view(torch.int64))
    header = json.loads(bytes(message[8 : 8 + length]))
    shapes = [(_DTYPES[dtype], torch.Size(shape)) for dtype, shape in header["tensors"]]
    sizes = [dtype.itemsize * shape.numel() for dtype, shape in shapes]
    parts = iter(
        [
            _part(packed, place, dtype, shape)
            for place, (dtype, shape) in zip(_places(8 + length, sizes), shapes, strict=True)
        ]
    )
    batches = [next(parts) for _ in range(header["batches"])]
    targets = [next(parts) if there else None for there in header["targets"]]
    copied = {name: next(parts) for name in header["copied"]}
    return Chunk(header["number"], batches, targets, copied)


def _size(tensor: torch.Tensor) -> int:
    if str(tensor.dtype) not in _DTYPES:
        raise TypeError(f"a result is {tensor.dtype}; it must be one of {', '.join(_DTYPES)}")
    size: int = tensor.numel() * tensor.element_size()
    return size


def _places(begin: int, sizes: Iterable[int]) -> Iterator[int]:
    for size in sizes:
        begin = -(-begin // _ALIGNMENT) * _ALIGNMENT
        yield begin
        begin += size


def _part(packed: torch.Tensor, place: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    size = dtype.itemsize * shape.numel()
    return packed[place : place + size].view(dtype).view(shape)
