"""Join and barrier."""

from __future__ import annotations

import operator

from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.torch.horovod.async_completion import wait_for_all
from perseus.torch.horovod.eager import eager
from perseus_core import barrier as _barrier
from perseus_core import join as _join


@eager
def join(device: int = -1) -> int:
    """Says that this rank has no more data, and waits until all ranks of the world say so.

    Meanwhile it takes part in the others' operations, also in its process sets, with what changes
    nothing: zeros to a sum, no rows to a gather. An average is still over all ranks. A broadcast
    from it fails.

    Args:
      device: the GPU that Horovod would take zeros from, -1 for none. Any will do: tensors of GPUs
        go by way of the host while a rank has joined, which needs none of its own.

    Returns the rank that joined last, the same on all ranks.
    """
    if operator.index(device) < -1:
        raise ValueError(f"device is {device}; it takes the number of a GPU, or -1")
    return _join()


@eager
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once all ranks of the set have called it.

    What CUDA streams wait for (PERSEUS_ASYNC_COMPLETION) is complete then on this rank; an error of
    it is raised.
    """
    wait_for_all()
    _barrier(process_set=set_id(process_set))
