"""How the ranks of a job have ended, and which rank caused it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection


class RankOutcomes:
    """Records the ranks that have ended, and those that others have reported as lost.

    A rank that fails because another is gone names that one, since it may be the first to exit.

    Args:
      goes_on: whether the job goes on without ranks that fail.
    """

    def __init__(self, *, goes_on: bool) -> None:
        self.goes_on = goes_on
        self._statuses: dict[int, int] = {}  # by rank, for those that have exited
        # From a rank to the ranks that it blames, the latest ones.
        self._blames: dict[int, frozenset[int]] = {}
        self._given_up_by: dict[int, set[int]] = defaultdict(set)

    def exited(self, rank: int, status: int) -> None:
        self._statuses[rank] = status

    def blame(
        self, rank: int, culprits: Collection[int], *, is_lost: bool, running: Collection[int]
    ) -> bool:
        """Records that `rank` cannot go on because of others; returns whether to end those.

        The culprits have left, or if `is_lost` they are dead, have been silent for too long, or
        take no part. They are ended if the job goes on without them and all other running ranks of
        their world blame the same ones, too. If they disagree, hosts may be cut off from each
        other, and there is no telling which side is right. Then the launcher loses those on hosts
        that it does not reach.

        Args:
          running: those of the rank's world that run.
        """
        self._blames[rank] = blamed = frozenset(culprits)
        if not is_lost:
            return False
        for culprit in blamed:
            self._given_up_by[culprit].add(rank)
        others = set(running) - blamed
        agree = all(self._blames.get(other) == blamed for other in others)
        return self.goes_on and not blamed.isdisjoint(running) and agree

    def met(self, ranks: Collection[int]) -> None:
        """Records that these ranks have met in a new world, so none of them is lost."""
        for rank in ranks:
            self._given_up_by.pop(rank, None)
            self._blames.pop(rank, None)

    def is_victim(self, rank: int) -> bool:
        """Returns whether the rank blames another for its failure."""
        return rank in self._blames

    def why(self, victim: int) -> str:
        """Describes why a rank that blames another has failed."""
        return "blaming " + " and ".join(map(self._how, sorted(self._blames[victim])))

    def _how(self, culprit: int) -> str:
        status = self._statuses.get(culprit)
        ended = "is still running" if status is None else f"had already exited with code {status}"
        return f"rank {culprit}, which {ended}"

    def have_been_given_up(self, ranks: Collection[int]) -> bool:
        """Returns whether each of these ranks has been given up on by one not among them."""
        return all(self._given_up_by[rank] - set(ranks) for rank in ranks)
