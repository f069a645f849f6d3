"""torch.distributed over Gloo."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Contender:
    def __init__(self, backend: str = "gloo") -> None:
        torch.set_num_threads(1)
        dist.init_process_group(backend)
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._outputs: dict[tuple[str, int], torch.Tensor] = {}

    def tensor(self, elements: int) -> torch.Tensor:
        return torch.ones(elements)

    def fill(self, tensor: torch.Tensor, value: float) -> None:
        tensor.fill_(value)

    def allreduce(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor

    def allreduce_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """torch.distributed has only an in-place allreduce; a script would copy."""
        copy = tensor.clone()
        dist.all_reduce(copy)
        return copy

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.broadcast(tensor, 0)
        return tensor

    def allgather(self, tensor: torch.Tensor) -> torch.Tensor:
        output = self._output("allgather", tensor.numel() * self.size)
        dist.all_gather_into_tensor(output, tensor)
        return output

    def alltoall(self, tensor: torch.Tensor) -> torch.Tensor:
        output = self._output("alltoall", tensor.numel())
        dist.all_to_all_single(output, tensor)
        return output

    def reducescatter(self, tensor: torch.Tensor) -> torch.Tensor:
        output = self._output("reducescatter", tensor.numel() // self.size)
        dist.reduce_scatter_tensor(output, tensor)
        return output

    def pass_round(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sends a tensor to the next rank, and returns the one that the previous has sent."""
        received = self._output("round", tensor.numel())
        work = dist.isend(tensor, (self.rank + 1) % self.size)
        dist.recv(received, (self.rank - 1) % self.size)
        work.wait()
        return received

    def allreduce_async(self, tensor: torch.Tensor, name: str, priority: int = 0) -> Any:
        return dist.all_reduce(tensor, async_op=True)

    def wait(self, handle: Any) -> None:
        handle.wait()

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, prefix: str
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        return DistributedDataParallel(model), optimizer

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()

    def _output(self, kind: str, elements: int) -> torch.Tensor:
        """The output is kept between calls, as fast scripts do."""
        return self._outputs.setdefault((kind, elements), torch.empty(elements))
