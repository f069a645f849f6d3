"""What a case of torch.distributed is, and what became of it, in a form that can be compared."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

#: The body of a case. It gets the place of this rank and, if the case is a collective, arguments
#: for the function. Works in what it returns are waited for before the rest is looked at.
Body = Callable[..., Any]

Outcome = list[Any]


@dataclass(frozen=True)
class Place:
    """This rank, in the group of a case."""

    rank: int  # in the world
    members: tuple[int, ...]  # of the group, by their ranks in the world
    group: Any

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def root(self) -> int:
        """Returns the last of the members."""
        return self.members[-1]

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @property
    def next(self) -> int:
        return self._beside(1)

    @property
    def previous(self) -> int:
        return self._beside(-1)

    def _beside(self, step: int) -> int:
        return self.members[(self.members.index(self.rank) + step) % self.size]

    @property
    def place(self) -> int:
        return self.members.index(self.rank) if self.rank in self.members else -1

    def x(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns this rank's values: small whole numbers, so that sums are exact."""
        generator = torch.Generator().manual_seed(self.rank + 1)
        return torch.randint(1, 4, shape, generator=generator).to(dtype)

    def blank(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def xs(self, *shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        """Returns different values for each member."""
        return [self.x(*shape, dtype=dtype) + i for i in range(self.size)]

    def blanks(self, *shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        return [torch.zeros(shape, dtype=dtype) for _ in range(self.size)]


@dataclass(frozen=True)
class Case:
    """One line of the table.

    covers: the function that it is about, such as "all_reduce", of torch.distributed, or
    "ProcessGroup.allreduce". collective: the body takes group= and async_op=, and runs in the world
    and in a group, waiting at once and later.
    """

    covers: str
    what: str
    body: Body
    collective: bool = False

    @property
    def name(self) -> str:
        return f"{self.covers}: {self.what}"


def outcome(body: Callable[[], Any]) -> Outcome:
    """Runs a body and says what came of it."""
    try:
        result = body()
        _wait(result)
        return ["value", described(result)]
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return ["error", kinds[: kinds.index("Exception") + 1], str(error)]


def _wait(result: Any) -> None:
    if isinstance(result, (dist.Work, torch._C.Future)):
        result.wait()
    elif isinstance(result, (list, tuple)):
        for part in result:
            _wait(part)


def described(value: Any) -> Any:
    """Returns something of lists, texts and numbers that tells what the value is."""
    if isinstance(value, torch.Tensor):
        return _described_tensor(value)
    if isinstance(value, dist.Work):
        # Some of Gloo's works do not say so themselves when they are complete.
        return ["work", value.is_success(), described(value.exception())]
    if isinstance(value, dist.ProcessGroup):
        return ["group", value.rank(), value.size()]
    if isinstance(value, (list, tuple)):
        return [described(part) for part in value]
    if isinstance(value, dict):
        return {str(key): described(part) for key, part in value.items()}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, complex, datetime.timedelta, torch.dtype, torch.device)):
        return str(value)
    return type(value).__name__


def _described_tensor(tensor: torch.Tensor) -> list[Any]:
    tensor = tensor.detach()
    layout = str(tensor.layout)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if hasattr(tensor, "to_local"):
        return ["distributed", str(tensor.placements), _described_tensor(tensor.to_local())]
    kind = str(tensor.dtype)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    values = tensor.to(torch.float64).flatten().tolist()
    return [kind, layout, list(tensor.shape), values]
