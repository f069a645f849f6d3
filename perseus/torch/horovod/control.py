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
    """Declares that this rank has no more data, and waits until all ranks have done so.

    Meanwhile this rank takes part in the operations of the others, also in its process sets, with
    neutral data: zeros in a sum, no rows in a gather. An average still counts all ranks. A
    broadcast from this rank fails.

    Args:
      device: the GPU on which Horovod would make zeros, or -1. It has no effect: while a rank has
        joined, tensors on GPUs go by way of the host, and this rank needs none of its own.

    Returns the rank that joined last, the same on all ranks.
    """
    if operator.index(device) < -1:
        raise ValueError(f"device is {device}; it takes the number of a GPU, or -1")
    return _join()


@eager
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once all ranks of the set have called it.

    Operations that CUDA streams wait for (PERSEUS_ASYNC_COMPLETION) are then complete on this rank;
    an error in one of them is raised.
    """
    wait_for_all()
    _barrier(process_set=set_id(process_set))
