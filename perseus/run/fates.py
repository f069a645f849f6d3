"""How the ranks of a job have ended, whose fault that is, and whether enough are left to go on."""

from __future__ import annotations

from collections.abc import Collection


class Fates:
    """What is known of ranks that have ended, and of those that others cannot go on without.

    A rank that fails for want of another names it, for it may well be the first to exit.

    least: the job goes on without ranks that fail as long as so many are left; None: it ends.
    """

    def __init__(self, size: int, least: int | None) -> None:
        self.least = least
        self._size = size
        self._statuses: dict[int, int] = {}  # of those that have exited
        self._blames: dict[int, int] = {}  # whom ranks blame for their failure
        self._given_up: set[int] = set()
        self._failed: set[int] = set()

    @property
    def left(self) -> int:
        """Ranks that have not failed."""
        return self._size - len(self._failed)

    def exited(self, rank: int, status: int) -> None:
        self._statuses[rank] = status

    def blame(self, rank: int, culprit: int, *, is_lost: bool) -> bool:
        """`rank` cannot go on: `culprit` has left or, `is_lost`, is dead or silent for too long.

        Whether it is to be ended if it still runs, since the others go on without it. Of two ranks
        that cannot reach each other, the one that is blamed first has lost.
        """
        self._blames[rank] = culprit
        if not is_lost or rank in self._given_up or rank in self._failed:
            return False
        self._given_up.add(culprit)
        return self.least is not None

    def fail(self, ranks: Collection[int]) -> bool:
        """Whether the job goes on without these."""
        self._failed |= set(ranks)
        return self.least is not None and self.left >= self.least

    def is_victim(self, rank: int) -> bool:
        """Whether it has failed for want of another."""
        return rank in self._blames

    def why(self, victim: int) -> str:
        culprit = self._blames[victim]
        status = self._statuses.get(culprit)
        ended = "is still running" if status is None else f"had ended before with code {status}"
        return f"for want of rank {culprit}, which {ended}"

    def have_been_given_up(self, ranks: Collection[int]) -> bool:
        """Whether others have given up every one of these."""
        return set(ranks) <= self._given_up
