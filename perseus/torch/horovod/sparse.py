"""Allreduce of sparse tensors, as allgathers of their indices and values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import Average, Sum
from perseus.torch.horovod import handles
from perseus.torch.horovod.allgather import allgather_async
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import checked, contiguous
from perseus_core import HorovodInternalError, OperationKind, refusals
from perseus_core.arguments import plain_text


@eager
def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts the sum or average of sparse COO tensors; call its result to wait for the tensor.

    The tensor is not coalesced: an index that several ranks have occurs several times.
    """
    set_number = set_id(process_set)
    parts = [f"{plain_text('name', name)}.indices", f"{name}.values"]
    with refusals.refusing_all(OperationKind.ALLGATHER, "allgather", parts, set_number):
        if op not in (Average, Sum):
            raise ValueError("a sparse tensor can be reduced with op Average or Sum")
        if checked(tensor).layout is not torch.sparse_coo:
            raise ValueError(
                f"sparse_allreduce_async takes a sparse COO tensor, not {tensor.layout}"
            )
        own_indices = contiguous(tensor._indices().transpose(0, 1))
        own_values = contiguous(tensor._values())
    indices = allgather_async(own_indices, parts[0], process_set)
    values = allgather_async(own_values, parts[1], process_set)

    def result() -> torch.Tensor:
        try:
            all_values = handles.synchronize(values)
        finally:
            all_indices = handles.synchronize(indices)
        _check_indices(all_indices, tensor, parts[0])
        if op == Average:
            all_values = all_values / process_set.size()
        return torch.sparse_coo_tensor(
            all_indices.transpose(0, 1), all_values, tensor.shape, check_invariants=False
        )

    return result


def _check_indices(indices: torch.Tensor, tensor: torch.Tensor, name: str) -> None:
    """Raises HorovodInternalError if an index lies outside the tensor.

    PyTorch's optimizers would write there. On GPUs its kernels check by themselves.
    """
    if not indices.is_cpu or indices.numel() == 0:
        return
    sizes = torch.tensor(tensor.shape[: tensor.sparse_dim()])
    lowest, highest = indices.min(0).values, indices.max(0).values
    if bool((lowest < 0).any()) or bool((highest >= sizes).any()):
        raise HorovodInternalError(
            f"allgather of '{name}': an index from another rank lies outside the tensor, whose "
            f"shape is {tuple(tensor.shape)}; the ranks' tensors must have the same shape"
        )
