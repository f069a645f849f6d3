"""Allreduce of one tensor or of a group.

Common arguments:
  name: what ranks match the operation by; unnamed calls are matched in their order.
  op: Average (the default), Sum, Min, Max or Product. `average` is its deprecated form.
  prescale_factor, postscale_factor: inputs are multiplied by the former first, results by the
    latter last.
  process_set: the ranks that take part.

A call raises ValueError for a mistake that is found on this rank. If the ranks' calls do not fit
together, every rank raises HorovodInternalError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import resolve_op
from perseus.torch.horovod import handles
from perseus.torch.horovod.compression import Compression, Compressor, checked_compression
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import (
    Operands,
    allreduce_operand,
    checked,
    checked_list,
    copied_back,
    may_be_differentiated,
    operands,
    shares_memory,
)
from perseus_core import OperationKind, engine, refusals, submission
from perseus_core.arguments import real_number

#: Horovod's calls have no argument for it.
_PRIORITY = 0


@eager
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an allreduce into a new tensor; returns a handle for poll and synchronize."""
    return _start(tensor, average, name, op, prescale_factor, postscale_factor, process_set)


@eager
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an allreduce in place; returns a handle for poll and synchronize."""
    return _start(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True
    )


@eager
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces the ranks' tensors element by element into a new tensor. Differentiable."""
    set_number = set_id(process_set)
    try:
        op = resolve_op(op, average)
        compressed, ctx = checked_compression(compression).compress(checked(tensor))
        reduce = HorovodAllreduce.apply if may_be_differentiated(compressed) else _run
    except Exception as error:
        refusals.refuse_call(OperationKind.ALLREDUCE, "allreduce", name, set_number, error)
        raise
    reduced = reduce(compressed, None, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, ctx)


@eager
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces the ranks' tensors element by element in place, and returns the tensor."""
    return _run(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set, in_place=True
    )


@eager
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts allreduces that are agreed on and complete as one; returns one handle for all."""
    set_number = set_id(process_set)
    with refusals.refusing(OperationKind.ALLREDUCE, "grouped_allreduce", name, set_number):
        op = resolve_op(op, average)
        scales = checked_scales(prescale_factor, postscale_factor)
        sent = operands(tensors, "new")
    handle = _submit_group(sent, name, op, scales, set_number)
    return handles.track(handle, sent.targets)


@eager
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts the allreduces of a group in place; returns one handle for all."""
    set_number = set_id(process_set)
    with refusals.refusing(OperationKind.ALLREDUCE, "grouped_allreduce", name, set_number):
        op = resolve_op(op, average)
        scales = checked_scales(prescale_factor, postscale_factor)
        sent = operands(tensors, "in place")
    handle = _submit_group(sent, name, op, scales, set_number)

    def finish(_: int) -> Sequence[torch.Tensor]:
        sent.copy_back()
        return tensors

    return handles.track(handle, tensors, finish)


@eager
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Does an allreduce of several tensors as one operation. Differentiable."""
    with refusals.refusing(OperationKind.ALLREDUCE, "grouped_allreduce", name, set_id(process_set)):
        op = resolve_op(op, average)
        checked_compression(compression)
        compressed = [compression.compress(tensor) for tensor in checked_list(tensors)]
    reduced = HorovodGroupedAllreduce.apply(
        None,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        *(tensor for tensor, _ in compressed),
    )
    return [
        compression.decompress(tensor, ctx)
        for tensor, (_, ctx) in zip(reduced, compressed, strict=True)
    ]


@eager
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Sequence[torch.Tensor]:
    """Reduces several tensors in place as one operation, and returns them."""
    reduced: Sequence[torch.Tensor] = handles.synchronize(
        grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )
    return reduced


def checked_scales(prescale: float, postscale: float) -> tuple[float, float]:
    """Returns the scale factors as floats; raises TypeError if one is not a number."""
    return real_number("prescale_factor", prescale), real_number("postscale_factor", postscale)


def _start(*arguments: Any, in_place: bool = False) -> int:
    """Starts an allreduce; takes the arguments of `_submit`."""
    return _track(*_submit(*arguments, in_place=in_place, waits=False), arguments[0], in_place)


def _run(*arguments: Any, in_place: bool = False) -> torch.Tensor:
    """Does an allreduce to its end; takes the arguments of `_submit`."""
    handle, source, target = _submit(*arguments, in_place=in_place, waits=True)
    tensor: torch.Tensor = arguments[0]
    if handle != 0:
        reduced: torch.Tensor = handles.finish(_track(handle, source, target, tensor, in_place))
        return reduced
    if not in_place:
        return target
    return tensor if shares_memory(source, tensor) else copied_back(source, tensor)


def _track(
    handle: int, source: torch.Tensor, target: torch.Tensor, tensor: torch.Tensor, in_place: bool
) -> int:
    if in_place:
        return handles.track_in_place(handle, source, tensor)
    return handles.track(handle, target)


def _submit(
    tensor: torch.Tensor,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    *,
    in_place: bool,
    waits: bool,
) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Submits an allreduce; gives its handle, what is sent, and where the result goes.

    The handle is 0 if it is complete, as it may be if the caller waits for it.
    """
    set_number = set_id(process_set)
    try:
        source, target, operand, place = allreduce_operand(tensor, in_place)
        reduction = (resolve_op(op, average), *checked_scales(prescale, postscale), _PRIORITY)
    except Exception as error:
        refusals.refuse_call(OperationKind.ALLREDUCE, "allreduce", name, set_number, error)
        raise
    handle = submission.submit(
        OperationKind.ALLREDUCE,
        "allreduce",
        name,
        set_number,
        source if in_place else (source, target),
        engine.run_allreduce if waits and not place else engine.submit_allreduce,
        *operand,
        *reduction,
        *place,
    )
    return handle, source, target


def _submit_group(
    sent: Operands, name: str | None, op: int, scales: tuple[float, float], set_number: int
) -> int:
    prescale, postscale = scales
    return submission.submit(
        OperationKind.ALLREDUCE,
        "grouped_allreduce",
        name,
        set_number,
        (sent.sources, sent.targets),
        engine.submit,
        sent.described,
        reduce_op=op,
        prescale=prescale,
        postscale=postscale,
        place=sent.place,
    )


class HorovodAllreduce(torch.autograd.Function):
    """An allreduce, whose gradient is the same reduction of the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.arguments = (average, op, prescale_factor, postscale_factor, process_set)
        return _run(tensor, average, name, op, prescale_factor, postscale_factor, process_set)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        average, op, prescale, postscale, process_set = ctx.arguments
        reduced = allreduce(
            grad_output,
            average,
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return reduced, None, None, None, None, None, None


class HorovodGroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.arguments = (average, op, prescale_factor, postscale_factor, process_set)
        return tuple(
            handles.synchronize(
                grouped_allreduce_async(
                    tensors, average, name, op, prescale_factor, postscale_factor, process_set
                )
            )
        )

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        average, op, prescale, postscale, process_set = ctx.arguments
        reduced = grouped_allreduce(
            grad_output,
            average,
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return None, None, None, None, None, None, *reduced
