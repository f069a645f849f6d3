"""How the ranks of a job have ended, whose fault that is, and whether enough are left to go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection


class RankOutcomes:
    """What is known of ranks that have ended, and of those that others cannot go on without.

    A rank that fails for want of another names it, for it may well be the first to exit.

    least: the job goes on without ranks that fail as long as so many are left; None: it ends.
    """

    def __init__(self, size: int, least: int | None) -> None:
        self.least = least
        self._size = size
        self._statuses: dict[int, int] = {}  # of those that have exited
        self._blames: dict[int, int] = {}  # whom ranks blame for their failure, the last time
        self._given_up_by: dict[int, set[int]] = defaultdict(set)
        self._failed: set[int] = set()

    @property
    def left(self) -> int:
        """Ranks that have not failed."""
        return self._size - len(self._failed)

    def exited(self, rank: int, status: int) -> None:
        self._statuses[rank] = status

    def blame(self, rank: int, culprit: int, *, is_lost: bool, running: Collection[int]) -> bool:
        """`rank` cannot go on: `culprit` has left or, `is_lost`, is dead or silent for too long.

        Whether the culprit is to be ended: the job goes on without it, and all others that run say
        the same of it. Where they do not, hosts may be cut off from each other, and nobody can tell
        who is right; those that cannot come to where survivors meet are left out there.
        """
        self._blames[rank] = culprit
        if not is_lost:
            return False
        self._given_up_by[culprit].add(rank)
        others = set(running) - {culprit}
        agree = all(self._blames.get(other) == culprit for other in others)
        return self.least is not None and culprit in running and agree

    def met(self, ranks: Collection[int]) -> None:
        """These have come together in a new world: none of them is lost."""
        for rank in ranks:
            self._given_up_by.pop(rank, None)
            self._blames.pop(rank, None)

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

    def have_been_given_up(self, ranks: Collection[int], left_out: Collection[int]) -> bool:
        """Whether others than these have given up every one of them.

        left_out: ranks that did not come in time when the survivors met.
        """
        return all(rank in left_out or self._given_up_by[rank] - set(ranks) for rank in ranks)
