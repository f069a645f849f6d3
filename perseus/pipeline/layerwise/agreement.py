"""What all ranks must agree on before they train, and what they tell each other afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perseus.pipeline.layerwise.failures import Failure
from perseus.pipeline.layerwise.stage import Stage
from perseus.pipeline.layerwise.times import StageTimes
from perseus.pipeline.same import require_same

__all__ = ["UNKNOWN", "Outcome", "Proposal", "agreed", "check_stages", "stage_name"]


#: In place of a chunk's number: the stage has trained on some chunks, and on others not.
UNKNOWN = -1


def stage_name(number: int, stage: Stage) -> str:
    """ "stage 2 (RBM)" """
    return f"stage {number} ({type(stage).__name__})"


def check_stages(stages: Sequence[Stage]) -> None:
    """Raises TypeError or ValueError if there are none, or neighbours do not fit together."""
    if not stages:
        raise ValueError("stages is empty; it must have one stage or more")
    for number, stage in enumerate(stages):
        if not isinstance(stage, Stage):
            raise TypeError(f"stage {number} is {type(stage).__name__}; it must be a Stage")
        if any(stage is other for other in stages[:number]):
            raise ValueError(f"{stage_name(number, stage)} is in the list twice")
    for number, (before, stage) in enumerate(pairwise(stages), 1):
        if why := stage.misfit(before):
            raise ValueError(
                f"{stage_name(number, stage)} does not fit {stage_name(number - 1, before)}: {why}"
            )


@dataclass(frozen=True)
class Proposal:
    """What one rank is about to do.

    Attributes:
      rank: of the world.
      problem: why it cannot, if so.
      stages: the description of each.
      owners: the rank of each stage.
      options: name and value of the other arguments that must be the same.
      chunks: the chunk that each of its own stages has to go on with, by the stage's number.
      per_epoch: mini-batches in an epoch, on the rank that has the data.
    """

    rank: int
    problem: str | None
    stages: list[str]
    owners: list[int]
    options: dict[str, object]
    chunks: dict[int, int]
    per_epoch: int | None


def agreed(proposals: Sequence[Proposal]) -> tuple[int, int]:
    """Returns the mini-batches of an epoch and the chunk to begin with.

    Raises ValueError, the same on all ranks, if one has a problem or they do not agree.
    """
    for one in proposals:
        if one.problem:
            raise ValueError(f"rank {one.rank} cannot train: {one.problem}")
    require_same([_described(one) for one in proposals], [one.rank for one in proposals])
    chunks = {stage: chunk for one in proposals for stage, chunk in one.chunks.items()}
    for stage, chunk in sorted(chunks.items()):
        if chunk == UNKNOWN:
            raise ValueError(
                f"stage {stage} was left amid a training that failed; load states of all stages "
                "that were saved before the same chunk"
            )
        if chunk != chunks[0]:
            raise ValueError(
                f"stage {stage} stands at chunk {chunk} and stage 0 at chunk {chunks[0]}; load "
                "states of all stages that were saved before the same chunk"
            )
    per_epoch = next(one.per_epoch for one in proposals if one.per_epoch is not None)
    return per_epoch, chunks[0]


def _described(proposal: Proposal) -> dict[str, object]:
    found: dict[str, object] = {"the number of stages": len(proposal.stages)}
    for number, stage in enumerate(proposal.stages):
        found[f"stage {number}"] = stage
    for number, owner in enumerate(proposal.owners):
        found[f"the owner of stage {number}"] = f"rank {owner}"
    return found | proposal.options


@dataclass(frozen=True)
class Outcome:
    """How a rank's training ended."""

    failure: Failure | None
    times: list[StageTimes]
