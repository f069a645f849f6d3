"""A communication hook that has DistributedDataParallel average its gradients by Perseus.

hvd.init()
dist.init_process_group("gloo", ...)        # any backend, for what DDP does besides
model = DistributedDataParallel(model)
model.register_comm_hook(hvd.global_process_set, allreduce_hook)
"""

# No `from __future__ import annotations`: DDP looks at the hook's, and wants types.

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
    """Averages a bucket over the set, in place. Every rank must have the same buckets in the same
    order, as DDP sees to."""
    buffer = bucket.buffer()
    # Buckets come from the last layers to the first, which the next forward needs first.
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
