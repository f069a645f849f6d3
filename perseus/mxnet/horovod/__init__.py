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
from perseus.mxnet.horovod.compression import Compression
from perseus.mxnet.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_parameters,
)
from perseus.mxnet.horovod.mpi_ops import *  # noqa: F403
from perseus.mxnet.horovod.mpi_ops import __all__ as _operations
from perseus.mxnet.horovod.optimizer import DistributedOptimizer
from perseus.mxnet.horovod.trainer import DistributedTrainer

__all__ = [
    *_operations,
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "ProcessSet",
    "add_process_set",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "check_extension",
    "global_process_set",
    "remove_process_set",
    "split_list",
]
