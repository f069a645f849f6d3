"""What the members of an elastic job's world hear of the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perseus.elastic.forming import Forming
from perseus.elastic.host_table import Change
from perseus.elastic.owner import Owner
from perseus.elastic.workers import State, Worker, Workers

__all__ = ["ChangeNews"]


class ChangeNews:
    """Tells the members that some of them leave, or that others are to join. Not thread-safe.

    Args:
      workers, forming: the driver's.
    """

    def __init__(self, owner: Owner, workers: Workers, forming: Forming) -> None:
        self._owner = owner
        self._workers = workers
        self._forming = forming
        self.number = 0  # of the last change that members were told of
        self._announced: set[int] = set()  # the workers of whom they were told
        self._heirs_in = 0  # the last world that was told that it has heirs

    @property
    def announced(self) -> list[int]:
        """Returns the workers of whom members were told, in order."""
        return sorted(self._announced)

    def restore(self, number: int, announced: Iterable[int]) -> None:
        """Goes on after another driver."""
        self.number, self._announced = number, set(announced)

    def tell(self) -> None:
        """Tells the members what they have not been told yet."""
        if self._forming.is_under_way:
            return
        members = [w for w in self._workers.alive() if self._is_in_world(w)]
        leaving = {w.number for w in members if w.is_leaving}
        joining = {w.number for w in self._joiners()}
        change = Change.NO_UPDATE
        if leaving - self._announced:
            change |= Change.REMOVED
        if joining - self._announced:
            change |= Change.ADDED
        if self._are_heirs_new(members):
            self._heirs_in = self._forming.meeting
            change |= Change.REMOVED
        if change is Change.NO_UPDATE:
            return
        self._announced |= leaving | joining
        self.number += 1
        for member in members:
            self._owner.notify(member, self.number, change)

    def _are_heirs_new(self, members: Sequence[Worker]) -> bool:
        """Returns whether members may leave as soon as others have the state, and nobody knows yet.

        Those who are new have it once they have come to a commit.
        """
        have_come = any(
            not (member.awaits_heir or member.is_leaving or self._workers.can_give_state(member))
            for member in members
        )
        are_awaited = any(member.awaits_heir for member in members)
        return have_come and are_awaited and self._heirs_in != self._forming.meeting

    def _is_in_world(self, worker: Worker) -> bool:
        """Returns whether a worker trains in the current world, and not in one before it."""
        return worker.state is State.MEMBER and worker.meeting == self._forming.meeting

    def _joiners(self) -> list[Worker]:
        """Returns the workers that the members are to be interrupted for."""
        states = [State.WAITING]
        if self._forming.awaits_starting:
            states.append(State.STARTING)
        return [worker for worker in self._workers.of_state(*states) if not worker.is_old]
