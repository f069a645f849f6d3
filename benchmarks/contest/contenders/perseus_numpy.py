"""Perseus through perseus_core, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import perseus_core as core

Array = NDArray[np.float32]
SUM = core.ReduceOp.SUM


class Contender:
    def __init__(self) -> None:
        core.init()
        self.rank = core.rank()
        self.size = core.size()

    def tensor(self, elements: int) -> Array:
        return np.ones(elements, np.float32)

    def fill(self, tensor: Array, value: float) -> None:
        tensor.fill(value)

    def allreduce(self, tensor: Array) -> Array:
        return core.allreduce(tensor, SUM, name=f"sum{tensor.size}", out=tensor)

    def allreduce_copy(self, tensor: Array) -> Array:
        return core.allreduce(tensor, SUM, name=f"copy{tensor.size}")

    def broadcast(self, tensor: Array) -> Array:
        return core.broadcast(tensor, 0, name=f"broadcast{tensor.size}", out=tensor)

    def allgather(self, tensor: Array) -> Array:
        return core.allgather(tensor, name=f"gather{tensor.size}")

    def alltoall(self, tensor: Array) -> Array:
        return core.alltoall(tensor, name=f"alltoall{tensor.size}")[0]

    def reducescatter(self, tensor: Array) -> Array:
        return core.reducescatter(tensor, SUM, name=f"scatter{tensor.size}")

    def allreduce_async(self, tensor: Array, name: str, priority: int = 0) -> Any:
        return core.allreduce_async(tensor, SUM, name=name, out=tensor, priority=priority)

    def wait(self, handle: Any) -> None:
        handle.wait()

    def barrier(self) -> None:
        core.barrier()

    def close(self) -> None:
        core.shutdown()
