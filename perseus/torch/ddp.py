"""A communication hook with which DistributedDataParallel averages its gradients by Perseus.

hvd.init()
dist.init_process_group("gloo", ...)        # any backend, for the other operations of DDP
model = DistributedDataParallel(model)
model.register_comm_hook(hvd.global_process_set, allreduce_hook)
"""

# No `from __future__ import annotations`: DDP checks the annotations of the hook, which must be
# types.

from datetime import timedelta

import torch
import torch.distributed as dist

from perseus.common.process_sets import ProcessSet, set_id
from perseus.torch.c10d_work import start, submit_arguments
from perseus_core import OperationKind, ReduceOp

__all__ = ["allreduce_hook"]

_NO_LIMIT = timedelta(days=365)


def allreduce_hook(
    process_set: ProcessSet, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket over the set, in place.

    Every rank must have the same buckets in the same order; DDP ensures that.
    """
    buffer = bucket.buffer()
    # Buckets come in order from the last layers to the first, which the next forward pass needs
    # first.
    call = submit_arguments([(buffer, buffer)], reduce_op=ReduceOp.AVERAGE, priority=bucket.index())
    work = start(
        OperationKind.ALLREDUCE,
        "ddp.allreduce",
        set_id(process_set),
        [call],
        _nothing,
        [buffer],
        _NO_LIMIT,
    )
    return work.get_future().then(_first)


def _nothing(_: list[int]) -> None:
    return None


def _first(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]
