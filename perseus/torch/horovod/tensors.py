"""Describes PyTorch tensors for the engine, by an address, a shape and a number for the type.

An operation on CUDA tensors waits for the work that is in the current stream at the time of the
call. It is complete when the GPU has finished it. Until then, references to all tensors that it
reads and writes are kept: PyTorch's allocator does not know the engine's streams, and must not
reuse that memory. async_completion has another rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.autograd import forward_ad

from perseus.torch.row_major import is_row_major, row_major
from perseus_core import DataType, engine
from perseus_core.engine import Operand, Place
from perseus_core.gpu_arrays import CUDA, in_torch

#: For tensors of at least this many bytes, getting fresh memory takes longer than filling it.
LARGE = 4 << 20
_NUMBERS = {
    getattr(torch, member.name.lower()): int(member)
    for member in DataType
    if hasattr(torch, member.name.lower())  # uint16 came with torch 2.3
}


def is_known(dtype: torch.dtype) -> bool:
    """Returns whether the engine has a number for the element type."""
    return dtype in _NUMBERS


def dtype_number(tensor: torch.Tensor) -> int:
    """Returns the engine's number of the element type; ValueError if it cannot be sent."""
    number = _NUMBERS.get(tensor.dtype)
    if number is None or tensor.layout is not torch.strided:
        kind = "" if tensor.layout is torch.strided else f" with layout {tensor.layout}"
        raise ValueError(f"Tensor type {tensor.type()}{kind} is not supported.")
    _check_device(tensor)
    return number


def _check_device(tensor: torch.Tensor) -> None:
    """Raises ValueError if the tensor is on another kind of device than the engine knows."""
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(f"the tensor is on {tensor.device}; Perseus moves CPU and CUDA tensors")


#: Where the results of an operation go: into memory that the engine allocates, into new tensors, or
#: into the inputs.
Results: TypeAlias = Literal["allocated", "new", "in place"]


class Operands(NamedTuple):
    """The tensors of one operation, checked and described for engine.submit."""

    #: as the caller has them
    tensors: Sequence[torch.Tensor]
    #: the memory that is sent: the tensors themselves, or row-major copies
    sources: list[torch.Tensor]
    #: where the results go; the sources in place, and empty if the engine allocates them
    targets: list[torch.Tensor]
    #: the argument `tensors` of engine.submit
    described: list[Operand]
    #: the argument `place` of engine.submit; None is CPU memory
    place: Place | None

    def copy_back(self) -> None:
        """Brings the results of a complete operation in place into the tensors."""
        for source, tensor in zip(self.sources, self.tensors, strict=True):
            copied_back(source, tensor)


def operand(tensor: torch.Tensor, results: Results) -> Operands:
    """Prepares the tensor of an operation.

    Raises TypeError if the argument is not a tensor, ValueError if it cannot be sent, or cannot
    take a result in place.
    """
    return _operands([checked(tensor)], results)


def operands(tensors: Iterable[torch.Tensor], results: Results) -> Operands:
    """Prepares the tensors of a group; raises what `operand` does, and ValueError unless they are
    all on one device."""
    return _operands(checked_list(tensors), results)


def _operands(tensors: Sequence[torch.Tensor], results: Results) -> Operands:
    if results == "in place":
        for tensor in tensors:
            checked_target(tensor)
    sources = [contiguous(tensor) for tensor in tensors]
    if results == "new":
        targets = [empty_like(source) for source in sources]
    else:
        targets = sources if results == "in place" else []
    return Operands(tensors, sources, targets, *described(sources, targets))


def allreduce_operand(
    tensor: torch.Tensor, in_place: bool
) -> tuple[torch.Tensor, torch.Tensor, Operand, tuple[Any, ...]]:
    """Prepares the tensor of an allreduce for engine.submit_allreduce; raises what `operand` does.

    Gives what is sent, where the result goes, and what `in_memory` gives for the two.
    """
    number = dtype_number(checked(tensor))
    if is_row_major(tensor):
        source = tensor.detach()
    else:
        source = row_major(checked_target(tensor) if in_place else tensor)
    target = source if in_place else empty_like(source)
    return source, target, *in_memory(source, target, number)


def in_memory(
    source: torch.Tensor, target: torch.Tensor, number: int
) -> tuple[Operand, tuple[Any, ...]]:
    """Describes row-major tensors of a type, by its number, for engine.submit_allreduce.

    Gives what it takes before the reduction, and what it takes after the priority: nothing for CPU
    memory, otherwise a codec, a callback and a place.
    """
    operand = source.data_ptr(), target.data_ptr(), source.shape, number
    place = None if source.is_cpu else place_of([source])
    return operand, () if place is None else (0, None, *place)


def described_one(
    source: torch.Tensor, target: torch.Tensor | None
) -> tuple[list[Operand], Place | None]:
    """described for one tensor: `target` gets the result, or the engine allocates it."""
    operand = (
        source.data_ptr(),
        0 if target is None else target.data_ptr(),
        source.shape,
        dtype_number(source),
    )
    if source.is_cpu and (target is None or target.is_cpu):
        return [operand], None
    return [operand], place_of([source] if target is None else [source, target])


def described(
    sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor | None]
) -> tuple[list[Operand], Place | None]:
    """Describes row-major tensors, and where they are, for engine.submit.

    Args:
      targets: where the results go, one for each source; None for one that the engine allocates, or
        empty if it allocates all.

    ValueError for tensors that cannot be sent, or are not all on one device.
    """
    outputs = [0 if target is None else target.data_ptr() for target in targets]
    tensors = [
        (source.data_ptr(), output, source.shape, dtype_number(source))
        for source, output in zip(sources, outputs or [0] * len(sources), strict=True)
    ]
    return tensors, place_of([*sources, *(each for each in targets if each is not None)])


def place_of(tensors: Sequence[torch.Tensor]) -> Place | None:
    """Returns where the tensors of an operation are; ValueError unless all are on one device, of a
    kind that the engine knows."""
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
    _check_device(tensors[0])
    return CUDA, device.index, torch.cuda.current_stream(device).cuda_stream


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor itself if its memory holds it in row-major order, otherwise a copy.

    Raises TypeError or ValueError if it cannot be sent.
    """
    dtype_number(checked(tensor))
    return row_major(tensor)


def checked_target(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor; raises ValueError if it cannot take a result in place."""
    if checked(tensor).layout is not torch.strided or is_row_major(tensor):
        return tensor
    if tensor._is_zerotensor():
        raise ValueError(
            "the tensor is one of zeros that PyTorch keeps no memory for; it cannot take a result "
            "in place, so pass its clone()"
        )
    if any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        raise ValueError(
            "several elements of the tensor share one place in memory, as after expand(); it "
            "cannot take a result in place, so pass its clone()"
        )
    return tensor


def shares_memory(buffer: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Returns whether the result of contiguous for the tensor is not a copy."""
    return bool(buffer.data_ptr() == tensor.data_ptr())


def copied_back(buffer: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Returns `tensor`, with the data of `buffer`, which is a copy of it or shares its memory."""
    if not shares_memory(buffer, tensor):
        copy(tensor.detach(), buffer)
    return tensor


def copy(target: torch.Tensor, buffer: torch.Tensor) -> None:
    """Copies a buffer, which is freed afterwards and may be memory of another stream."""
    target.copy_(buffer)
    if buffer.is_cuda:
        buffer.record_stream(torch.cuda.current_stream(buffer.device))


def record_stream(stream: torch.cuda.Stream, memory: Any) -> None:
    """Marks tensors, or storages, as in use by the work that is in a stream at present.

    They may then be freed: PyTorch's allocator does not reuse their memory before this stream has
    finished that work.
    """
    if isinstance(memory, (list, tuple)):
        for part in memory:
            record_stream(stream, part)
    elif isinstance(memory, torch.UntypedStorage):
        whole = torch.empty(0, dtype=torch.uint8, device=memory.device)
        whole.set_(memory).record_stream(stream)
    else:
        memory.record_stream(stream)


def checked(tensor: torch.Tensor, argument: str = "tensor") -> torch.Tensor:
    """Returns the tensor; raises TypeError if it is not one."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{argument} is {type(tensor).__name__}; it takes a torch.Tensor")
    return tensor


def checked_list(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors of a group as a list; raises TypeError if one is not a tensor."""
    if not isinstance(tensors, Iterable):
        raise TypeError(f"tensors is {type(tensors).__name__}; it takes a list of torch.Tensor")
    return [checked(tensor, f"tensors[{i}]") for i, tensor in enumerate(tensors)]


def may_be_differentiated(tensor: torch.Tensor) -> bool:
    """Returns whether autograd, or a transform of functions, must see operations on the tensor."""
    return (
        (tensor.requires_grad and torch.is_grad_enabled())
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
    )


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a new row-major tensor of the same shape and type, for a result."""
    if type(tensor) is torch.Tensor and tensor.is_contiguous():
        fresh = torch.empty_like(tensor)  # takes a third of the time
    else:
        fresh = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if fresh.nbytes >= LARGE and fresh.is_cpu:
        engine.prefer_huge_pages(fresh.data_ptr(), fresh.nbytes)
    return fresh


def take_result(handle: int, index: int = 0) -> torch.Tensor:
    """Returns result `index`, which the engine allocated; in CPU memory without a copy."""
    return from_result(engine.Result(handle, index))


def from_result(result: engine.Result) -> torch.Tensor:
    """Returns a result as a tensor, which owns the memory if that is CPU memory."""
    if result.device == CUDA:
        return in_torch(result)
    if result.dtype == DataType.BOOL:  # DLPack in PyTorch 2.1 does not have it
        return torch.from_numpy(np.asarray(result))
    return torch.from_dlpack(result)
