"""The ranks that train together: those of a process set, or this process alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import perseus_core
from perseus.common import objects
from perseus.common.process_sets import ProcessSet, set_id

__all__ = ["Team"]


@dataclass(frozen=True)
class Team:
    """The ranks, and which of them this is.

    Attributes:
      ranks: of the world, ascending.
      rank: this one.
      process_set: None for a process on its own, before init.
    """

    ranks: list[int]
    rank: int
    process_set: ProcessSet | None

    @classmethod
    def of(cls, process_set: ProcessSet) -> Team:
        """Raises ValueError if this rank is not in the process set."""
        if not perseus_core.is_initialized():
            return cls([0], 0, None)
        ranks = perseus_core.process_set_ranks(set_id(process_set))
        rank = perseus_core.rank()
        if rank not in ranks:
            raise ValueError(
                f"rank {rank} is not in the process set of ranks {ranks}; only those train"
            )
        return cls(list(ranks), rank, process_set)

    @property
    def place(self) -> int:
        """The position of this rank in the team."""
        return self.ranks.index(self.rank)

    @property
    def set_number(self) -> int:
        """The engine's number of the process set."""
        return perseus_core.WORLD if self.process_set is None else set_id(self.process_set)

    def gather(self, what: Any) -> list[Any]:
        """Returns what each rank has given, in the order of the ranks."""
        if self.process_set is None or len(self.ranks) == 1:
            return [what]
        return objects.allgather_object(what, None, self.process_set)
