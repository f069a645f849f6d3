"""Where each stage lives, and which chunks of the stream it works on. Pure functions of arguments.

The data is a stream of chunks, and each stage trains on as many of them as greedy layer-wise
training would give it: `trained`. Stage i begins at chunk i * delay. Once it has trained on its
share it only computes results, for as long as a stage above still trains. With a delay of all
chunks nothing overlaps, and the result is that of greedy training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Plan", "assign", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """The chunks of every stage.

    Attributes:
      per_epoch: mini-batches in an epoch.
      epochs: how often the data is gone through for each stage.
      chunk: mini-batches in a chunk; the last one of a stage's share may have fewer.
      delay: chunks between the beginnings of two neighbours.
      stages: their number.
    """

    per_epoch: int
    epochs: int
    chunk: int
    delay: int
    stages: int

    @property
    def updates(self) -> int:
        """Mini-batches that each stage trains on."""
        return self.per_epoch * self.epochs

    @property
    def trained(self) -> int:
        """Chunks that each stage trains on."""
        return math.ceil(self.updates / self.chunk)

    @property
    def total(self) -> int:
        """Chunks in the stream."""
        return self.first(self.stages - 1) + self.trained

    def first(self, stage: int) -> int:
        """The chunk that a stage begins with."""
        return stage * self.delay

    def trains(self, stage: int, chunk: int) -> bool:
        """Returns whether the stage trains on the chunk; after its share it only computes."""
        return self.first(stage) <= chunk < self.first(stage) + self.trained

    def batches(self, chunk: int) -> range:
        """The mini-batches of a chunk, counted from the beginning of a stage's share.

        The stream repeats after one share, so each stage sees the same data in the same order.
        """
        begin = chunk % self.trained * self.chunk
        return range(begin, min(begin + self.chunk, self.updates))

    def share(self, stage: int, chunk: int, batch: int) -> float:
        """The share of its updates that a stage has done before a mini-batch of a chunk."""
        done = self._before(chunk) - self._before(self.first(stage)) + batch
        return done / max(1, self.updates - 1)

    def _before(self, chunk: int) -> int:
        """The mini-batches of the stream before a chunk."""
        return chunk // self.trained * self.updates + self.batches(chunk).start


def make_plan(per_epoch: int, epochs: int, chunk: int, delay: float, stages: int) -> Plan:
    """Returns the plan in which a stage begins after a share of its predecessor's chunks.

    Args:
      delay: from 0 to 1; rounded up to whole chunks.
    """
    trained = math.ceil(per_epoch * epochs / chunk)
    return Plan(per_epoch, epochs, chunk, math.ceil(delay * trained), stages)


def assign(stages: int, ranks: int, owners: Sequence[int] | None = None) -> list[int]:
    """Returns the position of each stage's rank, 0 to ranks - 1, in contiguous blocks.

    Without `owners`, blocks are as even as they can be, the first ones larger.

    Raises ValueError if the blocks are not contiguous, or a rank has none.
    """
    if ranks > stages:
        raise ValueError(
            f"{stages} stages are for {ranks} ranks; there must be a stage for each rank: "
            f"give a process set of at most {stages} ranks"
        )
    if owners is None:
        small, larger = divmod(stages, ranks)
        return [rank for rank in range(ranks) for _ in range(small + 1 if rank < larger else small)]
    found = list(owners)
    if len(found) != stages:
        raise ValueError(f"owners has {len(found)} entries; it must have one for each stage")
    if sorted(set(found)) != list(range(ranks)) or found != sorted(found):
        raise ValueError(
            f"owners is {found}; it must name ranks 0 to {ranks - 1}, ascending, each at least once"
        )
    return found
