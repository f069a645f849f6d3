"""Allgather, which gives every rank the ranks' tensors, concatenated along the first dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import Average
from perseus.torch.horovod import handles
from perseus.torch.horovod.allreduce import allreduce, grouped_allreduce
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import (
    Operands,
    checked_list,
    operand,
    operands,
    take_result,
)
from perseus_core import OperationKind, engine, refusals, submission


@eager
def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an allgather; returns a handle for poll and synchronize."""
    set_number = set_id(process_set)
    with refusals.refusing(OperationKind.ALLGATHER, "allgather", name, set_number):
        sent = operand(tensor, "allocated")
    handle = _submit(sent, "allgather", name, set_number)
    return handles.track(handle, None, take_result)


@eager
def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Concatenates the ranks' tensors along the first dimension, the only one that may differ.

    Differentiable: the gradient is averaged over the ranks, as in Horovod.
    """
    return HorovodAllgather.apply(tensor, name, process_set)


@eager
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts allgathers that are agreed on and complete as one; returns one handle for all."""
    set_number = set_id(process_set)
    with refusals.refusing(OperationKind.ALLGATHER, "grouped_allgather", name, set_number):
        sent = operands(tensors, "allocated")
    handle = _submit(sent, "grouped_allgather", name, set_number)
    count = len(sent.sources)
    return handles.track(
        handle, None, lambda done: tuple(take_result(done, i) for i in range(count))
    )


@eager
def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Does an allgather of several tensors as one operation. Differentiable."""
    with refusals.refusing(OperationKind.ALLGATHER, "grouped_allgather", name, set_id(process_set)):
        tensors = checked_list(tensors)
    gathered: tuple[torch.Tensor, ...]
    gathered = HorovodGroupedAllgather.apply(name, process_set, *tensors)
    return gathered


def _submit(sent: Operands, prefix: str, name: str | None, set_number: int) -> int:
    return submission.submit(
        OperationKind.ALLGATHER,
        prefix,
        name,
        set_number,
        sent.sources,
        engine.submit,
        sent.described,
        place=sent.place,
    )


def _own_rows(
    grads: Sequence[torch.Tensor], rows: Sequence[int], process_set: ProcessSet
) -> list[torch.Tensor]:
    """Returns this rank's rows of the gradient of each gathered tensor."""
    counts = allgather(
        torch.tensor([rows], dtype=torch.int64, device="cpu"), process_set=process_set
    )
    before = counts[: process_set.rank()].sum(dim=0).tolist()
    return [
        grad.narrow(0, start, own) for grad, start, own in zip(grads, before, rows, strict=True)
    ]


class HorovodAllgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        gathered = handles.synchronize(allgather_async(tensor, name, process_set))
        ctx.rows = tensor.shape[0]
        ctx.process_set = process_set
        return gathered

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        reduced = allreduce(grad_output, op=Average, process_set=ctx.process_set)
        return _own_rows([reduced], [ctx.rows], ctx.process_set)[0], None, None


class HorovodGroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        gathered: tuple[torch.Tensor, ...]
        gathered = handles.synchronize(grouped_allgather_async(tensors, name, process_set))
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.process_set = process_set
        return gathered

    @staticmethod
    def backward(ctx: Any, *grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        reduced = grouped_allreduce(grad_output, op=Average, process_set=ctx.process_set)
        return None, None, *_own_rows(reduced, ctx.rows, ctx.process_set)
