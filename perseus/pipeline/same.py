"""Arguments that must be the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["require_same"]


def require_same(
    descriptions: Sequence[Mapping[str, Any]], ranks: Sequence[int] | None = None
) -> None:
    """Raises ValueError if ranks describe something in different ways; not all need mention it.

    Args:
      descriptions: of each rank, by what they are of.
      ranks: whose they are; None for all of the world, in order.
    """
    known: dict[str, tuple[int, Any]] = {}
    for rank, description in zip(
        range(len(descriptions)) if ranks is None else ranks, descriptions, strict=True
    ):
        for name, value in description.items():
            first, expected = known.setdefault(name, (rank, value))
            if value != expected:
                raise ValueError(
                    f"{name} is {expected} on rank {first} and {value} on rank {rank}; it must be "
                    "the same on all ranks"
                )
