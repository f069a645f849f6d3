"""Horovod's interface for TensorFlow: `import perseus.tensorflow.horovod as hvd`."""

from perseus.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from perseus.tensorflow.horovod import gradients as gradients  # registers them
from perseus.tensorflow.horovod.compression import Compression
from perseus.tensorflow.horovod.mpi_ops import *  # noqa: F403
from perseus.tensorflow.horovod.mpi_ops import __all__ as _operations
from perseus.tensorflow.horovod.reductions import (
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)

__all__ = [
    *_operations,
    "Compression",
    "ProcessSet",
    "add_process_set",
    "allreduce",
    "global_process_set",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
    "remove_process_set",
]
