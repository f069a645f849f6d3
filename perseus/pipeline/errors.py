"""The errors of pipelines, which say which stage has failed."""

from __future__ import annotations

from collections.abc import Sequence

from perseus_core import AbortedError

__all__ = ["StageError", "lost", "one_line"]


class StageError(RuntimeError):
    """A stage has failed. All ranks raise it; the text names the stage.

    On the rank that has the stage, `__cause__` is what the stage raised. Gradients of a Pipeline's
    step are then not complete.

    Attributes:
      stage: the stage's number; the first one's, if several have failed. None if what has failed
        is no stage's work.
      rank: the rank that it is on, or None.
    """

    def __init__(self, text: str, stage: int | None = None, rank: int | None = None) -> None:
        super().__init__(text)
        self.stage = stage
        self.rank = rank

    def __reduce__(self) -> tuple[type, tuple[str, int | None, int | None]]:
        return type(self), (str(self), self.stage, self.rank)


def lost(error: AbortedError, stages: Sequence[Sequence[int]]) -> AbortedError:
    """Returns the error of a lost rank with the stages that it had.

    stages: those of each rank of the world.
    """
    text = str(error)
    rank = error.rank
    if rank is None or rank >= len(stages) or "stage" in text:
        return error
    held = stages[rank]
    names = f"stage{'s' if len(held) > 1 else ''} {', '.join(map(str, held))}"
    return AbortedError(f"{text} (rank {rank} has {names} of the pipeline)")


def one_line(error: BaseException) -> str:
    """Returns the class and the first line of an error's text."""
    first = str(error).partition("\n")[0].strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
