"""Broadcast, which gives every rank the tensor of one."""

from __future__ import annotations

from typing import Any

import torch

from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import Average
from perseus.torch.horovod import handles
from perseus.torch.horovod.allreduce import allreduce
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import Operands, operand
from perseus_core import OperationKind, engine, rank, refusals, submission
from perseus_core.arguments import whole_number


@eager
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a broadcast into a new tensor; returns a handle for poll and synchronize."""
    set_number = set_id(process_set)
    with refusals.refusing(OperationKind.BROADCAST, "broadcast", name, set_number):
        root_rank = whole_number("root_rank", root_rank)
        sent = operand(tensor, "new")
    handle = _submit(sent, root_rank, name, set_number)
    return handles.track(handle, sent.targets[0])


@eager
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a broadcast in place; returns a handle for poll and synchronize."""
    set_number = set_id(process_set)
    with refusals.refusing(OperationKind.BROADCAST, "broadcast", name, set_number):
        root_rank = whole_number("root_rank", root_rank)
        sent = operand(tensor, "in place")
    handle = _submit(sent, root_rank, name, set_number)
    return handles.track_in_place(handle, sent.sources[0], tensor)


@eager
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the tensor of `root_rank`, a rank of the world that is in the set. Differentiable."""
    return HorovodBroadcast.apply(tensor, root_rank, name, process_set)


@eager
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Fills the tensor with that of `root_rank`, and returns it."""
    return handles.synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def _submit(sent: Operands, root_rank: int, name: str | None, set_number: int) -> int:
    return submission.submit(
        OperationKind.BROADCAST,
        "broadcast",
        name,
        set_number,
        (sent.sources, sent.targets),
        engine.submit,
        sent.described,
        root=root_rank,
        place=sent.place,
    )


class HorovodBroadcast(torch.autograd.Function):
    """A broadcast. The root gets the averaged gradient, the other ranks get zeros."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.root_rank = root_rank
        ctx.process_set = process_set
        return handles.synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        reduced = allreduce(grad_output, op=Average, process_set=ctx.process_set)
        if rank() != ctx.root_rank:
            reduced = reduced * 0
        return reduced, None, None, None
