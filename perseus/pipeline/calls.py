"""Which of a pipeline's methods a rank has called.

In each call, a rank first tells its peers which it is, and compares what it hears from a peer
before it takes anything else from it. So ranks in different calls do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["METHODS", "Call", "OtherCallError", "require_same_call"]

METHODS = ("step", "predict", "report", "save", "load")


class Call(NamedTuple):
    """A method, and whether stages of a traced module, which must agree on that, are in evaluation
    mode."""

    method: str
    evaluates: bool = False

    @property
    def code(self) -> int:
        """Returns a number for messages, which is not 0."""
        return 1 + 2 * METHODS.index(self.method) + self.evaluates

    @classmethod
    def of(cls, code: int) -> Call:
        method, evaluates = divmod(code - 1, 2)
        return cls(METHODS[method], bool(evaluates))

    def __str__(self) -> str:
        return f"{self.method} in evaluation mode" if self.evaluates else self.method


class OtherCallError(Exception):
    """A peer is in another call. Ends this rank's part; all hear of all calls at its end."""


def require_same_call(codes: Sequence[int]) -> None:
    """Raises ValueError, which names the ranks, unless all are in the same call."""
    ranks: dict[int, list[str]] = {}
    for rank, code in enumerate(codes):
        ranks.setdefault(code, []).append(str(rank))
    if len(ranks) > 1:
        said = ", ".join(
            f"{Call.of(code)} on rank{'s' * (len(those) > 1)} {' and '.join(those)}"
            for code, those in ranks.items()
        )
        raise ValueError(
            f"the call of the pipeline is {said}; all ranks must call the same methods in the same "
            "order"
        )
