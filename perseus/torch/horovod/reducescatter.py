"""Reduce-scatter, which gives every rank its rows of the reduced tensor.

If the rows cannot be divided evenly, the first ranks of the set get one more each. The common
arguments are those of perseus.torch.horovod.allreduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import Average, Sum, checked_op
from perseus.torch.horovod import handles
from perseus.torch.horovod.allgather import allgather, grouped_allgather
from perseus.torch.horovod.allreduce import checked_scales
from perseus.torch.horovod.compression import Compression, Compressor, checked_compression
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import (
    Operands,
    checked,
    checked_list,
    operand,
    operands,
    take_result,
)
from perseus_core import OperationKind, engine, process_set_size, refusals, submission


@eager
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduce-scatter; returns a handle for poll and synchronize."""
    set_number = set_id(process_set)
    with refusals.refusing(OperationKind.REDUCESCATTER, "reducescatter", name, set_number):
        op = checked_op(op)
        scales = checked_scales(prescale_factor, postscale_factor)
        sent = _scatterable(operand(tensor, "allocated"))
    handle = _submit(sent, "reducescatter", name, set_number, op, scales)
    return handles.track(handle, None, take_result)


@eager
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces the ranks' tensors; returns this rank's rows of the result. Differentiable."""
    with refusals.refusing(OperationKind.REDUCESCATTER, "reducescatter", name, set_id(process_set)):
        compressed, ctx = checked_compression(compression).compress(checked(tensor))
    reduced = HorovodReducescatter.apply(
        compressed, name, op, process_set, prescale_factor, postscale_factor
    )
    return compression.decompress(reduced, ctx)


@eager
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts reduce-scatters that are agreed on and complete as one; returns one handle for all."""
    set_number = set_id(process_set)
    with refusals.refusing(OperationKind.REDUCESCATTER, "grouped_reducescatter", name, set_number):
        op = checked_op(op)
        scales = checked_scales(prescale_factor, postscale_factor)
        sent = _scatterable(operands(tensors, "allocated"))
    handle = _submit(sent, "grouped_reducescatter", name, set_number, op, scales)
    count = len(sent.sources)
    return handles.track(handle, None, lambda done: [take_result(done, i) for i in range(count)])


@eager
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Does a reduce-scatter of several tensors as one operation. Differentiable."""
    with refusals.refusing(
        OperationKind.REDUCESCATTER, "grouped_reducescatter", name, set_id(process_set)
    ):
        checked_compression(compression)
        compressed = [compression.compress(tensor) for tensor in checked_list(tensors)]
    reduced = HorovodGroupedReducescatter.apply(
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        *(tensor for tensor, _ in compressed),
    )
    return [
        compression.decompress(tensor, ctx)
        for tensor, (_, ctx) in zip(reduced, compressed, strict=True)
    ]


def _submit(
    sent: Operands,
    prefix: str,
    name: str | None,
    set_number: int,
    op: int,
    scales: tuple[float, float],
) -> int:
    prescale, postscale = scales
    return submission.submit(
        OperationKind.REDUCESCATTER,
        prefix,
        name,
        set_number,
        sent.sources,
        engine.submit,
        sent.described,
        reduce_op=op,
        prescale=prescale,
        postscale=postscale,
        place=sent.place,
    )


def _scatterable(sent: Operands) -> Operands:
    if any(source.dim() == 0 for source in sent.sources):
        raise ValueError("reducescatter needs a tensor with at least one dimension")
    return sent


def _gradient_scale(op: int, process_set: ProcessSet, prescale: float, postscale: float) -> float:
    """Returns the factor for the gradient; for a sum it includes the number of ranks."""
    ranks = process_set_size(set_id(process_set)) if op == Sum else 1
    return prescale * postscale * ranks


class HorovodReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        rows = handles.synchronize(
            reducescatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor)
        )
        ctx.process_set = process_set
        ctx.scale = _gradient_scale(op, process_set, prescale_factor, postscale_factor)
        return rows

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gathered = allgather(grad_output * ctx.scale, process_set=ctx.process_set)
        return gathered, None, None, None, None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        rows = handles.synchronize(
            grouped_reducescatter_async(
                tensors, name, op, process_set, prescale_factor, postscale_factor
            )
        )
        ctx.process_set = process_set
        ctx.scale = _gradient_scale(op, process_set, prescale_factor, postscale_factor)
        return tuple(rows)

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled = [grad * ctx.scale for grad in grad_output]
        gathered = grouped_allgather(scaled, process_set=ctx.process_set)
        return None, None, None, None, None, *gathered
