"""The workers of an elastic job: its processes, each from its start to its end."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["Place", "State", "Worker", "Workers", "rank_order", "worker_places"]

#: A host, and the number of one of its slots.
Place = tuple[str, int]


class State(enum.Enum):
    STARTING = enum.auto()  # it has not called init yet
    WAITING = enum.auto()  # it is in init, and in no world
    MEMBER = enum.auto()  # it is in the current world
    FINISHED = enum.auto()  # its training function has returned, and nobody has begun another call
    GONE = enum.auto()  # the process has ended


@dataclass
class Worker:
    number: int  # of all that were ever started; no other worker gets it
    place: Place
    state: State = State.STARTING
    rank: int | None = None  # in the last world that it was in
    is_in_function: bool = False  # whether its training function has begun, and not returned
    call: int = 0  # of a training function, that it has begun last; 0: none
    returned: int = 0  # the last call from which it has returned
    meeting: int = 0  # of the last world that it was in
    commits: int = 0  # that its state had seen when it last asked for a world
    has_state: bool = False  # whether it is in the job from its start, or has seen a commit
    awaits_heir: bool = False  # whether its slot is gone, and it stays until another has its state
    is_leaving: bool = False  # whether the job has no place for it any more
    has_lost_slot: bool = False  # whether it is leaving for that reason alone
    is_told_to_end: bool = False  # whether it has been killed, or refused a world
    is_killed: bool = False
    is_out_of_reach: bool = False  # whether it could not reach the others when they were to meet
    has_done_all: bool = False  # whether the process has ended with code 0, and nothing is amiss
    leave_by: float | None = None  # when it is killed, if it is drained and has not left

    @property
    def is_alive(self) -> bool:
        return self.state is not State.GONE

    @property
    def may_stay(self) -> bool:
        """Returns whether it may still stay although it has lost its slot, and is leaving."""
        return self.has_lost_slot and not self.is_told_to_end and self.leave_by is None

    @property
    def is_old(self) -> bool:
        """Returns whether it has been in a world, and so may have a state that others need."""
        return self.rank is not None


@dataclass
class Workers:
    """All workers, by number."""

    _all: list[Worker] = field(default_factory=list)

    def add(self, place: Place) -> Worker:
        worker = Worker(len(self._all), place)
        self._all.append(worker)
        return worker

    def __getitem__(self, number: int) -> Worker:
        return self._all[number]

    def __len__(self) -> int:
        """Returns how many were ever started."""
        return len(self._all)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all)

    def alive(self) -> list[Worker]:
        return [worker for worker in self._all if worker.is_alive]

    def staying(self) -> list[Worker]:
        """Returns those that are alive, and whose slots are still the job's."""
        return [worker for worker in self.alive() if not worker.is_leaving]

    def can_give_state(self, worker: Worker) -> bool:
        """Returns whether others can get the job's state from this worker, as far as is known.

        A program without training functions reports no commits, so there all that have been in a
        world count.
        """
        has_functions = any(each.call for each in self._all)
        return worker.has_state or (worker.is_old and not has_functions)

    def earliest_call(self) -> int:
        """Returns the first call of a training function that one is in which may have the state."""
        return min((worker.call for worker in self.staying() if worker.is_old), default=0)

    def have_returned(self) -> bool:
        """Returns whether one has returned from the last call of a training function."""
        begun = max((worker.call for worker in self._all if worker.is_old), default=0)
        return 0 < max((worker.returned for worker in self._all), default=0) >= begun

    def slow_to_leave(self, now: float) -> list[Worker]:
        """Returns those that are drained, still in a world, and out of time."""
        return [worker for worker, leave_by in self._to_leave() if now >= leave_by]

    def next_to_leave(self) -> float | None:
        """Returns when `slow_to_leave` has another one; None for never."""
        return min((leave_by for _, leave_by in self._to_leave()), default=None)

    def _to_leave(self) -> Iterator[tuple[Worker, float]]:
        for worker in self._all:
            is_in_world = worker.state is State.MEMBER and not worker.is_told_to_end
            if is_in_world and worker.leave_by is not None:
                yield worker, worker.leave_by

    def of_state(self, *states: State) -> list[Worker]:
        return [worker for worker in self.staying() if worker.state in states]


def rank_order(workers: Iterable[Worker], hosts: Sequence[str]) -> list[Worker]:
    """Returns the workers in the order of their ranks in the next world.

    Those of a host stand together. Rank 0 has been in a world before if anyone has. Of those, it is
    in the latest call of a training function, and of those it has the most commits: it gives its
    state to those who have less. `hosts` are in the order in
    which new ones are to be used.
    """
    newest = len(hosts)
    place_of = {host: index for index, host in enumerate(hosts)}

    def progress(worker: Worker) -> tuple[bool, int, int, int]:
        return (not worker.is_old, -worker.call, -worker.commits, worker.rank or 0)

    def seniority(worker: Worker) -> tuple[bool, int, int, int, int]:
        return (*progress(worker), worker.place[1])

    ordered = sorted(
        workers,
        key=lambda worker: (*progress(worker), place_of.get(worker.place[0], newest)),
    )
    first_of_host: dict[str, int] = {}
    for index, worker in enumerate(ordered):
        first_of_host.setdefault(worker.place[0], index)
    return sorted(ordered, key=lambda worker: (first_of_host[worker.place[0]], seniority(worker)))


def worker_places(ordered: Sequence[Worker]) -> tuple[list[str], list[int]]:
    """Returns the hosts of workers in the order of their ranks, and the numbers of their slots."""
    return [worker.place[0] for worker in ordered], [worker.place[1] for worker in ordered]
