"""Horovod's interface for TensorFlow, served by Perseus.

    import perseus.tensorflow.horovod as hvd

    hvd.init()
    with tf.GradientTape() as tape:
        ...
    tape = hvd.DistributedGradientTape(tape)
    hvd.broadcast_variables(model.variables, root_rank=0)

Names and signatures are Horovod's. The interface for Keras is perseus.tensorflow.horovod.keras.
"""

from perseus.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from perseus.common.util import check_extension, gpu_available, split_list
from perseus.tensorflow.horovod import elastic
from perseus.tensorflow.horovod import gradients as gradients  # registers them
from perseus.tensorflow.horovod.compression import Compression
from perseus.tensorflow.horovod.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from perseus.tensorflow.horovod.gradient_aggregation import LocalGradientAggregationHelper
from perseus.tensorflow.horovod.gradient_tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from perseus.tensorflow.horovod.mpi_ops import *  # noqa: F403
from perseus.tensorflow.horovod.mpi_ops import __all__ as _operations
from perseus.tensorflow.horovod.optimizer import DistributedOptimizer
from perseus.tensorflow.horovod.reductions import (
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from perseus.tensorflow.horovod.sync_batch_norm import SyncBatchNormalization
from perseus.tensorflow.horovod.util import refs_to_vars, vars_to_refs

__all__ = [
    *_operations,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather_object",
    "allreduce",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_extension",
    "elastic",
    "global_process_set",
    "gpu_available",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "split_list",
    "vars_to_refs",
]
