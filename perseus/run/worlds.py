"""The worlds of a job's ranks, as far as its launcher can know them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from perseus.run.news import Accusation, Met

_LATEST = 16  # what is kept of the meetings that have been said of a rank


class Worlds:
    """Tells what ranks' engines report from the words of other processes.

    Everything that a rank's command starts inherits the descriptor on which its engine reports, and
    may write there before the engine does, or in its place. So words count only if they name a
    world that has begun, and of which the speaker and the ranks that it blames are members. Only
    the engines of a world know its name, which comes from what they told each other when they met.

    Args:
      has_met: returns whether these ranks have met at the launcher's rendezvous, in a world of this
        name. None where the ranks meet without the launcher, as with MPI. A world then has begun
        once each of its members has said so, in the same words; that is less, since helpers of all
        of them could agree on a name.
    """

    def __init__(self, has_met: Callable[[str, Sequence[int]], bool] | None) -> None:
        self._has_met = has_met
        self._said: dict[int, deque[Met]] = defaultdict(lambda: deque(maxlen=_LATEST))
        self._begun: dict[int, Met] = {}  # by rank, the latest world that it is in

    def begins(self, rank: int, met: Met) -> bool:
        """Notes what has been said of a rank; returns whether its world has begun."""
        if self._has_met is not None:
            if self._has_met(met.world, met.members):
                self._begun[rank] = met
                return True
            return False
        self._said[rank].append(met)
        if any(met not in self._said[member] for member in met.members):
            return False
        for member in met.members:
            self._begun[member] = met
        return True

    def members_with(self, rank: int) -> frozenset[int]:
        """Returns the members of the latest world that a rank is in, by their numbers."""
        world = self._begun.get(rank)
        return frozenset(world.members if world is not None else ())

    def counts(self, rank: int, accusation: Accusation) -> bool:
        """Returns whether an engine has said this of members of its world."""
        world = self._begun.get(rank)
        if world is None or world.world != accusation.world:
            return False
        return set(accusation.culprits) <= set(world.members)
