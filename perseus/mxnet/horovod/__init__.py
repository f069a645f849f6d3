"""Horovod's interface for MXNet, served by Perseus.

    import perseus.mxnet.horovod as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

Names and signatures are Horovod's.
"""

from perseus.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from perseus.common.util import check_extension, split_list
from perseus.mxnet.horovod import elastic
from perseus.mxnet.horovod.compression import Compression
from perseus.mxnet.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_parameters,
)
from perseus.mxnet.horovod.mpi_ops import *
from perseus.mxnet.horovod.optimizer import DistributedOptimizer
from perseus.mxnet.horovod.trainer import DistributedTrainer

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
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
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "split_list",
    "start_timeline",
    "stop_timeline",
    "sycl_built",
]
