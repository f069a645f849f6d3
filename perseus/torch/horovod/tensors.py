"""PyTorch's tensors as the engine takes them: an address, a shape, a number for the type.

An operation on CUDA tensors begins when the current stream has come to where it is at the call.
Until it is complete, which it is when the GPU is done, a reference to all that it reads and writes
is kept: PyTorch's allocator, which knows nothing of the engine's streams, must not give that memory
to others. async_completion has another rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from perseus_core import DataType, _engine
from perseus_core.gpu_arrays import CUDA, Place, in_torch

#: Bytes from which fresh memory takes longer to come by than to fill.
LARGE = 4 << 20
_NUMBERS = {
    getattr(torch, member.name.lower()): int(member)
    for member in DataType
    if hasattr(torch, member.name.lower())  # uint16 came with torch 2.3
}


def dtype_number(tensor: torch.Tensor) -> int:
    """The engine's number for the element type; ValueError for a tensor that cannot be sent."""
    number = _NUMBERS.get(tensor.dtype)
    if number is None or tensor.layout is not torch.strided:
        kind = "" if tensor.layout is torch.strided else f" with layout {tensor.layout}"
        raise ValueError(f"Tensor type {tensor.type()}{kind} is not supported.")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(f"the tensor is on {tensor.device}; Perseus moves CPU and CUDA tensors")
    return number


def place_of(tensors: Sequence[torch.Tensor]) -> Place | None:
    """Where the tensors of an operation are, as _engine.submit takes it; None is CPU memory.

    ValueError where they are not all on one device.
    """
    if not tensors:
        return None
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            raise ValueError(
                f"the group has tensors on {device} and on {tensor.device}; all tensors of a group "
                "must be on one device"
            )
    if device.type == "cpu":
        return None
    return CUDA, device.index, torch.cuda.current_stream(device).cuda_stream


def after_priority(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What _engine.submit_allreduce takes after the priority: a codec, a callback, a place."""
    place = None if tensor.is_cpu else place_of([tensor])
    return () if place is None else (0, None, *place)


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it can be sent from where it is, else a row-major copy.

    TypeError or ValueError for what cannot be sent.
    """
    dtype_number(checked(tensor))
    return tensor.detach().contiguous()


def checked_target(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; ValueError if it cannot take a result in place."""
    if checked(tensor).layout is not torch.strided or tensor.is_contiguous():
        return tensor
    if any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        raise ValueError(
            "several elements of the tensor share one place in memory, as after expand(); it "
            "cannot take a result in place, so give its clone()"
        )
    return tensor


def shares_memory(buffer: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether what contiguous gave for the tensor is no copy."""
    return buffer.data_ptr() == tensor.data_ptr()


def copied_back(buffer: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` with what `buffer` holds, which is a copy of it or shares its memory."""
    if not shares_memory(buffer, tensor):
        copy(tensor.detach(), buffer)
    return tensor


def copy(target: torch.Tensor, buffer: torch.Tensor) -> None:
    """target.copy_ of a buffer that is then let go of, and may be of another stream's memory."""
    target.copy_(buffer)
    if buffer.is_cuda:
        buffer.record_stream(torch.cuda.current_stream(buffer.device))


def leave_to(stream: torch.cuda.Stream, memory: Any) -> None:
    """Lets tensors, or their storages, be let go of as soon as the stream does what it has by now.

    PyTorch's allocator then gives their memory to others in the order of the stream that it was
    allocated for, and not before this one has come so far.
    """
    if isinstance(memory, (list, tuple)):
        for part in memory:
            leave_to(stream, part)
    elif isinstance(memory, torch.UntypedStorage):
        whole = torch.empty(0, dtype=torch.uint8, device=memory.device)
        whole.set_(memory).record_stream(stream)
    else:
        memory.record_stream(stream)


def contiguous_list(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """contiguous of each of a group."""
    return [contiguous(tensor) for tensor in checked_list(tensors)]


def checked(tensor: torch.Tensor, argument: str = "tensor") -> torch.Tensor:
    """The tensor; TypeError if it is none."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{argument} is {type(tensor).__name__}; it takes a torch.Tensor")
    return tensor


def checked_list(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a group as a list; TypeError if there is something else among them."""
    if not isinstance(tensors, Iterable):
        raise TypeError(f"tensors is {type(tensors).__name__}; it takes a list of torch.Tensor")
    return [checked(tensor, f"tensors[{i}]") for i, tensor in enumerate(tensors)]


def described(
    source: torch.Tensor, target: torch.Tensor | None = None
) -> tuple[int, int, tuple[int, ...], int]:
    """What _engine.submit takes for a tensor and where its result goes, if that is known."""
    output = 0 if target is None else target.data_ptr()
    return source.data_ptr(), output, source.shape, dtype_number(source)


def may_be_differentiated(tensor: torch.Tensor) -> bool:
    """Whether autograd, or a transform of functions, may want to know what becomes of it."""
    return (
        (tensor.requires_grad and torch.is_grad_enabled())
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
    )


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """A row-major tensor of this shape and type, for a result."""
    if type(tensor) is torch.Tensor and tensor.is_contiguous():
        fresh = torch.empty_like(tensor)  # which takes a third of the time
    else:
        fresh = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if fresh.nbytes >= LARGE and fresh.is_cpu:
        _engine.prefer_huge_pages(fresh.data_ptr(), fresh.nbytes)
    return fresh


def take_result(handle: int, index: int = 0) -> torch.Tensor:
    """Result `index`, which the engine allocated; in CPU memory without a copy."""
    return from_result(_engine.Result(handle, index))


def from_result(result: _engine.Result) -> torch.Tensor:
    """A result as a tensor, in CPU memory the one that owns it."""
    if result.device == CUDA:
        return in_torch(result)
    if result.dtype == DataType.BOOL:  # which the DLPack of PyTorch 2.1 does not know
        return torch.from_numpy(np.asarray(result))
    return torch.from_dlpack(result)
