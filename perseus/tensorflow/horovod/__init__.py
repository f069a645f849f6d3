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
from perseus.tensorflow.horovod.mpi_ops import *
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
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_extension",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "sycl_built",
    "vars_to_refs",
]
