"""Perseus through its horovod.mxnet interface, as its trainers and optimizers do."""

from __future__ import annotations

import mxnet as mx

import perseus.mxnet.horovod as hvd
import perseus_core
from contest.contenders.mxnet_arrays import MXNetContender


class Contender(MXNetContender):
    def __init__(self) -> None:
        hvd.init()
        self.rank = hvd.rank()
        self.size = hvd.size()

    def allreduce_async(self, tensor: mx.nd.NDArray, name: str, priority: int = 0) -> mx.nd.NDArray:
        return hvd.allreduce_(tensor, name=name, op=hvd.Sum, priority=priority)

    def barrier(self) -> None:
        mx.nd.waitall()
        perseus_core.barrier()

    def close(self) -> None:
        hvd.shutdown()
