"""How long each stage computed and waited, and how much of the time was bubble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Report", "StageFigures"]


@dataclass(frozen=True)
class StageFigures:
    """Seconds of one stage in a step, on average.

    Attributes:
      waited_for_input: for activations and gradients that it needed next.
      waited_for_output: at the end of the step, until all that its rank sent had been taken.
    """

    replica: int
    stage: int
    rank: int
    computed: float
    waited_for_input: float
    waited_for_output: float


@dataclass(frozen=True)
class Report:
    """The figures of all stages of all replicas, the same on every rank. Printed, it is a table.

    Attributes:
      steps: how many steps they are of.
      seconds: of a step, on average over ranks.
      stages: by replica and stage.
      bubble: the part of the ranks' time in which no stage computed, 0 to 1.
      expected_bubble: by the schedule's formula, for stages that take equal time.
    """

    schedule: str
    microbatches: int
    steps: int
    seconds: float
    stages: Sequence[StageFigures]
    expected_bubble: float

    @property
    def bubble(self) -> float:
        """Returns the part of the ranks' time in which no stage computed, 0 to 1."""
        ranks = len({row.rank for row in self.stages})
        computed = sum(row.computed for row in self.stages)
        return 1 - computed / (ranks * self.seconds) if self.steps else 0.0

    def __str__(self) -> str:
        several = len({row.replica for row in self.stages}) > 1
        lines = [
            f"{self.schedule}, {self.microbatches} micro-batches: {1e3 * self.seconds:.1f} ms a "
            f"step, over {self.steps} steps",
            f"bubble {self.bubble:.1%} (formula for equal stages: {self.expected_bubble:.1%})",
            ("replica  " if several else "")
            + "stage  rank  computed ms  waited for input  waited for output",
        ]
        for row in self.stages:
            lines.append(
                (f"{row.replica:7}  " if several else "")
                + f"{row.stage:5}  {row.rank:4}  {1e3 * row.computed:11.1f}"
                + f"  {1e3 * row.waited_for_input:16.1f}  {1e3 * row.waited_for_output:17.1f}"
            )
        return "\n".join(lines)
