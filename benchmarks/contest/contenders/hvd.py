"""The part that Perseus and Horovod share: horovod.torch's interface."""

from __future__ import annotations

from typing import Any

import torch


class HvdContender:
    def __init__(self, hvd: Any) -> None:
        torch.set_num_threads(1)
        self._hvd = hvd
        hvd.init()
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()

    def tensor(self, elements: int) -> torch.Tensor:
        return torch.ones(elements)

    def fill(self, tensor: torch.Tensor, value: float) -> None:
        tensor.fill_(value)

    # One name for each kind and size, as in a training script: new names need a full negotiation.
    def allreduce(self, tensor: torch.Tensor) -> torch.Tensor:
        name = f"sum{tensor.numel()}"
        result: torch.Tensor = self._hvd.allreduce_(tensor, name=name, op=self._hvd.Sum)
        return result

    def allreduce_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        name = f"copy{tensor.numel()}"
        result: torch.Tensor = self._hvd.allreduce(tensor, name=name, op=self._hvd.Sum)
        return result

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._hvd.broadcast_(tensor, 0, name=f"broadcast{tensor.numel()}")
        return result

    def allgather(self, tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._hvd.allgather(tensor, name=f"gather{tensor.numel()}")
        return result

    def alltoall(self, tensor: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._hvd.alltoall(tensor, name=f"alltoall{tensor.numel()}")
        return result

    def reducescatter(self, tensor: torch.Tensor) -> torch.Tensor:
        name = f"scatter{tensor.numel()}"
        result: torch.Tensor = self._hvd.reducescatter(tensor, name=name, op=self._hvd.Sum)
        return result

    def allreduce_async(self, tensor: torch.Tensor, name: str, priority: int = 0) -> Any:
        return self._hvd.allreduce_async_(tensor, name=name, op=self._hvd.Sum)

    def wait(self, handle: Any) -> None:
        self._hvd.synchronize(handle)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, prefix: str
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        named = [(f"{prefix}.{name}", param) for name, param in model.named_parameters()]
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, self._hvd.DistributedOptimizer(optimizer, named_parameters=named)

    def barrier(self) -> None:
        self._hvd.barrier()

    def close(self) -> None:
        self._hvd.shutdown()
