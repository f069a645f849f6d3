"""Ends training that fails again and again, although all of its ranks are there."""

from __future__ import annotations

import sys
from collections.abc import Hashable

from perseus_core.errors import HorovodInternalError

__all__ = ["MOST_FAILURES", "Failures"]

#: So often in a row may training fail without a commit in between, while nobody leaves or comes.
MOST_FAILURES = 5


class Failures:
    """Counts the failures of one call of a training function. Not thread-safe.

    Attributes:
      in_a_row: the failures since a commit, or since the ranks have changed. Ranks that have missed
        some of them take over the others' count when they meet.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self._last: tuple[int, Hashable] | None = None
        self._error: HorovodInternalError | None = None

    def note(self, error: HorovodInternalError, commits: int, ranks: Hashable) -> None:
        """Notes a failure.

        Args:
          commits: those of the state.
          ranks: the world in which it has failed.

        Raises HorovodInternalError if it is one too many.
        """
        is_like_last = self._last == (commits, ranks)
        self._last = commits, ranks
        self.in_a_row = self.in_a_row + 1 if is_like_last else 1
        if self.in_a_row > MOST_FAILURES:
            raise HorovodInternalError(
                f"training has failed {self.in_a_row} times in a row without a commit, although no "
                f"rank has left or come: {error}"
            ) from error
        self._error = error

    def begins_again(self, ranks: Hashable) -> None:
        """Says why training begins again, if that is with the same ranks."""
        if self._error is not None and self._last is not None and self._last[1] == ranks:
            print(
                "training begins again at its last commit, with the same ranks, since an operation "
                f"has failed ({self.in_a_row} of at most {MOST_FAILURES} times in a row): "
                f"{self._error}",
                file=sys.stderr,
                flush=True,
            )
        self._error = None
