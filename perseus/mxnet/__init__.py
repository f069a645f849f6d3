"""Perseus for MXNet, with a KVStore whose workers reduce among themselves.

    import perseus.mxnet as perseus

    kv = perseus.create("dist_sync_perseus")
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=kv)

perseus.mxnet.horovod is Horovod's interface. Its names are in this module as well.
"""

import importlib.util

if importlib.util.find_spec("mxnet") is None:
    raise ModuleNotFoundError(
        "perseus.mxnet needs MXNet, which is not installed; see `pip install mxnet==1.9.1`",
        name="mxnet",
    )

import numpy

if tuple(map(int, numpy.__version__.split(".")[:2])) >= (1, 24):
    raise ImportError(
        f"MXNet 1.9 takes a NumPy older than 1.24, and NumPy {numpy.__version__} is installed; "
        "`pip install 'numpy<1.24'`"
    )

from perseus.mxnet.horovod import *
from perseus.mxnet.kvstore import KVStore, PerseusOp, create

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "KVStore",
    "Max",
    "Min",
    "PerseusOp",
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
    "create",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
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
