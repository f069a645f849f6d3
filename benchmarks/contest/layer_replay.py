"""Replays the schedule of layer-wise training from measured times, for any number of ranks.

The replay follows the rule by which perseus.pipeline.layerwise works, with no time but that of the
stages and the links: a rank takes a chunk when it has come and the chunk before is done, takes it
through its stages, waits until the link has room, and sends the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """Attributes:
    rank: where it is; ranks ascend from 0, and each has neighbouring stages.
    first: the chunk that it begins with.
    seconds: of work on each chunk, from `first` on.
    """

    rank: int
    first: int
    seconds: Sequence[float]


def replay(stages: Sequence[Stage], link: float, room: int) -> float:
    """Returns the seconds from the beginning of the first chunk to the end of the last.

    Args:
      link: seconds from the sending of a chunk to its arrival. They pass while both ranks work.
      room: chunks that may be sent before the receiver begins the first of them.
    """
    ranks = stages[-1].rank + 1
    total = max(stage.first + len(stage.seconds) for stage in stages)
    ended = [0.0] * ranks
    began: list[dict[int, float]] = [{} for _ in range(ranks)]
    for chunk in range(total):
        arrival = 0.0
        for rank in range(ranks):
            own = [stage for stage in stages if stage.rank == rank and stage.first <= chunk]
            if not own:
                break
            began[rank][chunk] = max(ended[rank], arrival)
            ended[rank] = began[rank][chunk] + sum(
                stage.seconds[chunk - stage.first] for stage in own
            )
            if rank + 1 < ranks and _begins(stages, rank + 1) <= chunk:
                # Room for this one comes when that many chunks earlier has been begun.
                freed = began[rank + 1].get(chunk - room, 0.0)
                ended[rank] = max(ended[rank], freed)
                arrival = ended[rank] + link
    return max(ended)


def _begins(stages: Sequence[Stage], rank: int) -> int:
    return min(stage.first for stage in stages if stage.rank == rank)


def cycled(seconds: Sequence[float], count: int) -> list[float]:
    """Returns so many times by repeating those that were measured."""
    return [seconds[position % len(seconds)] for position in range(count)]
