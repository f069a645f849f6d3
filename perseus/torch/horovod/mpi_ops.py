"""All operations, in the module from which scripts written for Horovod import them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perseus.common.process import *
from perseus.common.process import basics as _basics
from perseus.common.process import is_homogeneous, is_initialized
from perseus.common.process_sets import ProcessSet
from perseus.common.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from perseus.torch.horovod import async_completion, handles
from perseus.torch.horovod.allgather import (
    HorovodAllgather,
    HorovodGroupedAllgather,
    allgather,
    allgather_async,
    grouped_allgather,
    grouped_allgather_async,
)
from perseus.torch.horovod.allreduce import (
    HorovodAllreduce,
    HorovodGroupedAllreduce,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from perseus.torch.horovod.alltoall import HorovodAlltoall, alltoall, alltoall_async
from perseus.torch.horovod.broadcast import (
    HorovodBroadcast,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from perseus.torch.horovod.control import barrier, join
from perseus.torch.horovod.deferred_updates import apply_all_updates
from perseus.torch.horovod.handles import poll, synchronize
from perseus.torch.horovod.reducescatter import (
    HorovodGroupedReducescatter,
    HorovodReducescatter,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from perseus.torch.horovod.sparse import sparse_allreduce_async


# They replace the functions of the same names in common.process.
def init(  # type: ignore[no-redef]
    comm: Any = None, process_sets: str | Sequence[ProcessSet] | None = None
) -> None:
    """Joins the other processes of the job; see perseus.common.basics.Basics.init."""
    if not is_initialized():
        handles.reset()
    _basics.init(comm, process_sets)


def shutdown() -> None:  # type: ignore[no-redef]
    """Leaves the job. Operations in flight fail, on all ranks. init may be called again."""
    apply_all_updates()
    _basics.shutdown()
    async_completion.warn_of_late_errors()


__all__ = [
    "Adasum",
    "Average",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "sycl_built",
    "synchronize",
]
