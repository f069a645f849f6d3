"""How the failure of a stage is told, and raised on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from perseus.common.exceptions import HorovodInternalError
from perseus.pipeline.errors import StageError
from perseus_core import AbortedError

__all__ = ["Failure", "StageLostError"]


class StageLostError(HorovodInternalError):
    """A rank died, left or could not be reached, and its stages with it.

    It is a HorovodInternalError, so that elastic training goes on with the ranks that are left.
    """


@dataclass(frozen=True)
class Failure:
    """What one rank tells the others.

    Attributes:
      stage, rank: which stage raised, and where; of a rank that is gone, its first stage.
      is_lost: the rank is gone.
    """

    text: str
    stage: int
    rank: int
    is_lost: bool = False

    def error(self) -> Exception:
        return StageLostError(self.text) if self.is_lost else StageError(*astuple(self)[:3])


def lost(error: AbortedError, names: Sequence[str], owners: Sequence[int]) -> Failure:
    """Returns the failure of a rank that is gone.

    Args:
      names, owners: the name and the rank of each stage.
    """
    rank = -1 if error.rank is None else error.rank
    if rank not in owners:
        return Failure(f"one of {', '.join(names)} is lost: {error}", 0, rank, is_lost=True)
    own = [number for number, owner in enumerate(owners) if owner == rank]
    text = f"lost: {', '.join(names[number] for number in own)}: {error}"
    return Failure(text, own[0], rank, is_lost=True)
