"""Allreduce of sparse tensors: every rank gathers the indices and values of all, and adds them up.

The sums have the same bits on all ranks, since all add in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from perseus.torch.c10d_bytes import bytes_of, deal, movable
from perseus.torch.c10d_reductions import Reduction
from perseus.torch.c10d_work import SubmitArguments, submit_arguments
from perseus.torch.horovod.tensors import take_result
from perseus.torch.row_major import row_major
from perseus_core import HorovodInternalError, ReduceOp

__all__ = ["GATHERS", "Gathering", "is_sparse", "prepare"]


#: The number of allgathers.
GATHERS = 3


class Gathering(NamedTuple):
    """The allgathers of a sparse allreduce, and what stores the result once they are complete."""

    submissions: list[SubmitArguments]
    finish: Callable[[list[int]], None]


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided


def prepare(tensor: torch.Tensor, reduction: Reduction, size: int) -> Gathering:
    """Prepares the sum or average over `size` ranks; raises RuntimeError, as Gloo, for others."""
    if tensor.layout is not torch.sparse_coo:
        raise NotImplementedError(f"the layout is {tensor.layout}; it must be torch.sparse_coo")
    has_factor = reduction.factor is not None or reduction.prescale != 1.0
    if reduction.op not in (ReduceOp.SUM, ReduceOp.AVERAGE) or has_factor:
        raise RuntimeError("a sparse tensor can be reduced with SUM or AVG")
    mine = tensor.detach().coalesce()
    shape = torch.tensor([mine.sparse_dim(), *mine.shape], device=mine.device)
    sources = [shape, row_major(mine.indices().t()), movable(row_major(mine.values()))]
    return Gathering(
        [submit_arguments([(source, None)]) for source in sources],
        functools.partial(_finish, tensor, shape, sources, reduction.op, size),
    )


def _finish(
    tensor: torch.Tensor,
    shape: torch.Tensor,
    sources: list[torch.Tensor],
    op: ReduceOp,
    size: int,
    handles: list[int],
) -> None:
    sources.clear()  # which had to live until now
    shapes, indices, data = (take_result(handle) for handle in handles)
    _check_shapes(shapes, shape, size)
    values = torch.empty(
        (len(indices), *tensor.shape[tensor.sparse_dim() :]),
        dtype=tensor.dtype,
        device=tensor.device,
    )
    deal(bytes_of(data), [values])
    with torch.no_grad():
        gathered = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=True)
        total = gathered.coalesce()
        tensor.copy_(total / size if op == ReduceOp.AVERAGE else total)


def _check_shapes(shapes: torch.Tensor, own: torch.Tensor, size: int) -> None:
    """All ranks get the same error if their tensors differ in shape."""
    if shapes.numel() == size * own.numel() and bool((shapes.view(size, -1) == own).all()):
        return
    raise HorovodInternalError(
        "the ranks' sparse tensors have different shapes; they must have the same, and as many "
        "sparse dimensions"
    )
