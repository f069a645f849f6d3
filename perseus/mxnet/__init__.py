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

from perseus.mxnet.horovod import *  # noqa: F403
from perseus.mxnet.horovod import __all__ as _horovods
from perseus.mxnet.kvstore import KVStore, PerseusOp, create

__all__ = [*_horovods, "KVStore", "PerseusOp", "create"]
