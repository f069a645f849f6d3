"""How long each stage worked and waited."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["StageTimes"]


@dataclass
class StageTimes:
    """Seconds of one stage in one call of train.

    Attributes:
      stage, name, rank: which stage it is, and on which rank of the world.
      busy: training and computing results; of a rank's last stage, also packing them.
      waiting_for_input: of the first stage of a rank: for the data or the rank before.
      waiting_for_output: of the last stage of a rank: for room on the link to the rank after.
      chunks: seconds of work on each chunk, as in `busy`.
      processor: the same in processor time of the thread that trains, which does not grow while
        other programs have the processor. Work that PyTorch gives to more threads is not in it.
    """

    stage: int
    name: str
    rank: int
    waiting_for_input: float = 0.0
    waiting_for_output: float = 0.0
    chunks: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    @property
    def busy(self) -> float:
        return sum(self.chunks)

    def __str__(self) -> str:
        return (
            f"{self.name} on rank {self.rank}: busy {self.busy:.3f} s, waiting for input "
            f"{self.waiting_for_input:.3f} s, for output {self.waiting_for_output:.3f} s"
        )
