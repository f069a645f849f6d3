"""Which messages a rank sends and receives in a step, and under which tags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perseus.pipeline.schedules import Action, Kind

__all__ = ["Routes"]

#: Tags of pipelines; a program's own messages should have lower ones.
FIRST_TAG = 1 << 30
_LAST_TAG = (1 << 31) - 1


@dataclass(frozen=True)
class Routes:
    """Where stages are, and the tags of messages over the borders between them.

    Border s is between stages s and s + 1. Two calls in a row have different tags. All messages of
    a call have come before the next one begins, so a third may have those of the first.

    Attributes:
      ranks: the ranks of the world that the pipeline is on, in the order of its stages.
      others: how many messages a step has besides those over borders.
    """

    ranks: Sequence[int]
    stages: int
    microbatches: int
    others: int = 0
    _span: int = field(init=False)

    def __post_init__(self) -> None:
        span = 2 * self.stages * self.microbatches + self.others + 1
        object.__setattr__(self, "_span", span)
        if FIRST_TAG + 2 * span > _LAST_TAG:
            raise ValueError(
                f"the pipeline has {self.stages} stages and {self.microbatches} micro-batches; "
                "their product must be less than 2**28, so that each message has a tag"
            )

    def rank_of(self, stage: int) -> int:
        return self.ranks[stage % len(self.ranks)]

    def crosses(self, border: int) -> bool:
        """Returns whether there is a border of this number, and between two ranks."""
        return 0 <= border < self.stages - 1 and len(self.ranks) > 1

    def activation(self, step: int, border: int, microbatch: int) -> int:
        """Returns the tag of what goes from stage `border` to the next."""
        return self._tag(step, border * self.microbatches + microbatch)

    def gradient(self, step: int, border: int, microbatch: int) -> int:
        """Returns the tag of the gradient of that, which goes back."""
        return self._tag(step, (self.stages + border) * self.microbatches + microbatch)

    def other(self, step: int, number: int) -> int:
        """Returns the tag of another message of a step."""
        return self._tag(step, 2 * self.stages * self.microbatches + number)

    def greeting(self, step: int) -> int:
        """Returns the tag of what ranks tell each other first."""
        return self._tag(step, self._span - 1)

    def of_actions(
        self, step: int, actions: Iterable[Action]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Returns what a rank sends and what it receives: by tag, the other rank."""
        sends, receives = {}, {}
        for kind, stage, number in actions:
            before, after = stage - 1, stage  # the stage's borders
            if kind is Kind.FORWARD:
                if self.crosses(before):
                    receives[self.activation(step, before, number)] = self.rank_of(before)
                if self.crosses(after):
                    sends[self.activation(step, after, number)] = self.rank_of(stage + 1)
            elif kind is not Kind.WEIGHT:
                if self.crosses(after):
                    receives[self.gradient(step, after, number)] = self.rank_of(stage + 1)
                if self.crosses(before):
                    sends[self.gradient(step, before, number)] = self.rank_of(before)
        return sends, receives

    def _tag(self, step: int, index: int) -> int:
        return FIRST_TAG + step % 2 * self._span + index
