"""An MXNet KVStore, named by KVSTORE: its own dist_sync over servers, or Perseus's."""

from __future__ import annotations

import os

import mxnet as mx

from contest.contenders.mxnet_arrays import MXNetContender

if os.environ["KVSTORE"].endswith("perseus"):
    import perseus.mxnet  # noqa: F401 - registers the KVStore


class Contender(MXNetContender):
    def __init__(self) -> None:
        self._store = mx.kv.create(os.environ["KVSTORE"])
        self.rank = self._store.rank
        self.size = self._store.num_workers
        self._keys: set[str] = set()

    def allreduce_async(self, tensor: mx.nd.NDArray, name: str, priority: int = 0) -> mx.nd.NDArray:
        if name not in self._keys:
            self._keys.add(name)
            self._store.init(name, tensor)
        self._store.push(name, tensor, priority=priority)
        self._store.pull(name, out=tensor, priority=priority)
        return tensor

    def barrier(self) -> None:
        mx.nd.waitall()
        # The pull completes once all ranks have pushed.
        self.wait(self.allreduce_async(mx.nd.ones((1,)), "barrier"))

    def close(self) -> None:
        mx.nd.waitall()
