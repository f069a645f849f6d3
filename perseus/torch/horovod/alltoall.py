"""Alltoall, in which every rank sends each rank some rows of its tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.torch.horovod import handles
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import from_result, operand
from perseus_core import OperationKind, engine, refusals, submission
from perseus_core.arguments import row_counts


@eager
def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an alltoall; synchronize returns the rows received, and their number by rank."""
    set_number = set_id(process_set)
    with refusals.refusing(OperationKind.ALLTOALL, "alltoall", name, set_number):
        sent = operand(tensor, "allocated")
        rows = None if splits is None else _as_rows(splits)
    handle = submission.submit(
        OperationKind.ALLTOALL,
        "alltoall",
        name,
        set_number,
        sent.sources,
        engine.submit,
        sent.described,
        splits=rows,
        place=sent.place,
    )
    # On the device of the caller's splits, as in Horovod.
    device = splits.device if isinstance(splits, torch.Tensor) else "cpu"

    def finish(done: int) -> tuple[torch.Tensor, torch.Tensor]:
        result = engine.Result(done)
        received = torch.tensor(result.received_splits, dtype=torch.int32, device=device)
        return from_result(result), received

    return handles.track(handle, None, finish)


@eager
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends each rank of the set some rows, and returns the rows received, in rank order.

    Args:
      splits: how many rows of the first dimension each rank gets, 1-D; None for equal parts.

    Returns the rows received; with `splits`, also how many came from each rank (int32).
    Differentiable. Raises ValueError if the splits are not one for each rank, or exceed the rows.
    """
    output, received = HorovodAlltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def _as_rows(splits: torch.Tensor | Sequence[int]) -> list[int]:
    if not isinstance(splits, torch.Tensor):
        return row_counts(splits)
    if splits.dim() != 1:
        raise ValueError(f"splits has {splits.dim()} dimensions; it takes one number for each rank")
    if splits.numel() and (splits.is_floating_point() or splits.is_complex()):
        raise ValueError(f"splits is {splits.dtype}; it takes whole numbers")
    rows: list[int] = splits.tolist()
    return rows


class HorovodAlltoall(torch.autograd.Function):
    """An alltoall, whose gradient is sent back to the ranks that the rows came from."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: torch.Tensor | Sequence[int] | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = handles.synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received = received.tolist()
        ctx.process_set = process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(
        ctx: Any, grad_output: torch.Tensor, *dead_gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        returned, _ = alltoall(grad_output, splits=ctx.received, process_set=ctx.process_set)
        return returned, None, None, None
