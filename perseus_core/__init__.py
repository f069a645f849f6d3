"""Perseus without a framework: collectives on arrays of any kind, and the state of the engine.

    import numpy as np
    import perseus_core as perseus

    perseus.init()
    mean = perseus.allreduce(np.full(4, perseus.rank(), np.float32))
    perseus.shutdown()

Start it with ``perseusrun -np 4 python program.py``.

Adapters for frameworks use these modules as well: engine, submission, names, refusals, opened_sets,
proven, callbacks, arguments, errors, constants, gpu_arrays, observe, process, processors,
driver_link.
"""

from perseus_core import gpu_libraries
from perseus_core._engine import Rendezvous
from perseus_core.announcements import announce, announced
from perseus_core.codecs import (
    commit_residuals,
    find_codec,
    forget_residuals,
    register_codec,
    restore_residuals,
)
from perseus_core.constants import WORLD, DataType, OperationKind, ReduceOp
from perseus_core.errors import (
    AbortedError,
    HorovodInternalError,
    MismatchError,
    NonFiniteError,
    NotInitializedError,
    TimedOutError,
    UnreachableError,
)
from perseus_core.gpu_arrays import GpuArray
from perseus_core.handle import Handle, poll, wait
from perseus_core.messages import Message, irecv, isend, recv, send
from perseus_core.observe import (
    GpuSupport,
    Setting,
    check_build,
    check_environment,
    core_distance,
    counters,
    gpu_support,
    library_version,
    settings,
    start_timeline,
    stop_timeline,
)
from perseus_core.operations import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_async,
    grouped_allreduce,
    grouped_allreduce_async,
    join,
    reducescatter,
    reducescatter_async,
)
from perseus_core.process import (
    add_process_set,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    process_set_rank,
    process_set_ranks,
    process_set_size,
    process_sets,
    rank,
    remove_process_set,
    shutdown,
    size,
)

__version__ = library_version()

__all__ = [
    "WORLD",
    "AbortedError",
    "DataType",
    "GpuArray",
    "GpuSupport",
    "Handle",
    "HorovodInternalError",
    "Message",
    "MismatchError",
    "NonFiniteError",
    "NotInitializedError",
    "OperationKind",
    "ReduceOp",
    "Rendezvous",
    "Setting",
    "TimedOutError",
    "UnreachableError",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "announce",
    "announced",
    "barrier",
    "broadcast",
    "broadcast_async",
    "check_build",
    "check_environment",
    "commit_residuals",
    "core_distance",
    "counters",
    "cross_rank",
    "cross_size",
    "find_codec",
    "forget_residuals",
    "gpu_support",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "init",
    "irecv",
    "is_homogeneous",
    "is_initialized",
    "isend",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "process_set_rank",
    "process_set_ranks",
    "process_set_size",
    "process_sets",
    "rank",
    "recv",
    "reducescatter",
    "reducescatter_async",
    "register_codec",
    "remove_process_set",
    "restore_residuals",
    "send",
    "settings",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "wait",
]

gpu_libraries.add_folders()
