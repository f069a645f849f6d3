"""Decides which workers an elastic job has, and which of them are in each of its worlds.

A *worker* is a process of the job. A *world* is the ranks that train together until one is lost,
leaves, or another comes. The driver starts a worker on each slot that may be used. A worker that
calls init asks for a world, and gets one when all have come that are to be in it:

    STARTING -> WAITING -> MEMBER -> WAITING (ranks were lost or join) -> MEMBER ... -> FINISHED

The driver does no I/O, reads the clock that it is given, and never blocks: its owner hands it what
happens, and does what it asks for (`Owner`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from perseus.elastic.host_table import Change, HostTable
from perseus.elastic.options import ElasticOptions
from perseus.elastic.workers import Place, State, Worker, Workers, rank_order
from perseus.run.hosts import Host, Slot, slots_on

__all__ = ["NEVER", "RESET_LIMIT", "Driver", "NextWorld", "Owner"]

NEVER = float("inf")

#: Scripts and tests look for these words of Horovod's.
RESET_LIMIT = "the number of resets during elastic job exceeded limit of {}"

_NOBODY_LEFT = "no worker is left that has been in the job's last world, and so has its state"

# Workers that are starting have so long beyond the time-out, which is for slots.
_SECONDS_TO_START = 300.0

# So often in a row may the same workers fail to meet, although none of them has ended.
_MOST_FAILED_MEETINGS = 3


@dataclass(frozen=True)
class NextWorld:
    """What a worker is told that is to be in a new world."""

    meeting: int  # counts the worlds, from 1
    workers: Sequence[int]  # in the order of their ranks
    started: int  # how many workers have ever been started
    change: int  # the number of the last change that this world takes into account


class Owner(Protocol):
    """Does what the driver asks for. It must not call the driver back meanwhile."""

    def start(self, starting: Sequence[Worker]) -> None:
        """Starts these workers."""

    def kill(self, worker: Worker, why: str) -> None: ...

    def enter(self, worker: Worker, world: NextWorld) -> None:
        """Answers a worker that has asked for a world."""

    def refuse(self, worker: Worker, why: str) -> None:
        """Answers a worker that has asked for a world, and is to end."""

    def notify(self, worker: Worker, number: int, change: Change) -> None:
        """Tells a worker that the next world will be another one."""

    def say(self, message: str) -> None:
        """Tells the user."""

    def end(self, failure: str | None) -> None:
        """Ends the job and all workers that are left; it has succeeded if there is no failure."""


class Driver:
    """Not thread-safe: the owner locks.

    Args:
      size: how many slots the job waits for before it starts.
    """

    def __init__(
        self,
        options: ElasticOptions,
        size: int,
        owner: Owner,
        table: HostTable | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._size = size
        self._owner = owner
        self._clock = clock
        self.table = table or HostTable(options.cooldown_range)
        self.workers = Workers()
        self.meeting = 0  # of the current world; 0 before the first
        self.change = 0  # the number of the last change that workers were told of
        self.is_over = False
        self._resets = 0  # how many worlds have come after another
        self._is_forming = True  # whether workers are to meet in another world
        self._forming_since = clock()
        self._deadline = clock() + options.timeout  # until enough workers are there; or NEVER
        self._waits_for_starts = False  # though the time-out is over
        self._has_told_of_too_few = False
        # Whether a worker has done all of its work, so that the others are about to.
        self._has_finished = False
        self._failed_meetings = 0  # since a worker has ended or a world has worked
        self._last_failure = ""
        self._announced: set[int] = set()  # the workers of whom the members were told

    # ---- What happens.

    def hosts_found(self, hosts: Sequence[Host]) -> None:
        """Takes over what discovery has found."""
        self.table.update(hosts)
        self._update()

    def ready(self, number: int, failure: str = "", commits: int = 0) -> None:
        """A worker is in init and asks for a world.

        Args:
          failure: why its last meeting has failed, if it has.
          commits: how many its state has seen.
        """
        worker = self.workers[number]
        if not worker.is_alive or self.is_over:
            return
        if worker.state is State.MEMBER and not failure:
            self._failed_meetings = 0
        worker.state = State.WAITING
        worker.commits = commits
        if failure:
            self._failed_meetings += 1
            self._last_failure = failure
        self._update()

    def began_function(self, number: int) -> None:
        """A worker has entered its training function."""
        self.workers[number].is_in_function = True

    def finished(self, number: int) -> None:
        """A worker's training function has returned."""
        worker = self.workers[number]
        worker.is_in_function = False
        if worker.is_alive:
            worker.state = State.FINISHED
            self._has_finished = True
        self._update()

    def ended(self, number: int, how: str | None) -> None:
        """A worker's process has ended.

        Args:
          how: "exited with code 1"; None if it exited with 0.
        """
        worker = self.workers[number]
        before = worker.state
        if before is State.GONE:
            return
        worker.state = State.GONE
        if self.is_over:
            return
        if how is None and worker.is_in_function:
            how = "exited with code 0 before its training function had returned"
        if not worker.is_leaving:
            if how is not None:
                self._failed(worker)
            else:
                self._has_finished = True  # a program without such a function
        self._failed_meetings = 0
        self._update()

    def planned(self) -> dict[int, Slot]:
        """Returns the ranks of the next world, by worker, if all come that are to stay."""
        hosts = [host.name for host in self.table.usable]
        ordered = rank_order(self.workers.staying(), hosts)
        slots = slots_on([worker.place[0] for worker in ordered])
        return {worker.number: slot for worker, slot in zip(ordered, slots, strict=True)}

    def next_deadline(self) -> float:
        """Returns when `handle_deadlines` must be called again, by the clock; or NEVER."""
        cooldown = self.table.next_deadline()
        return min(self._deadline, NEVER if cooldown is None else cooldown)

    def handle_deadlines(self) -> None:
        now = self._clock()
        cooldown = self.table.next_deadline()
        if cooldown is not None and now >= cooldown:
            self.table.refresh()
            self._update()
        if now >= self._deadline:
            self._deadline = NEVER
            self._time_out()

    # ---- What follows from it.

    def _update(self) -> None:
        if self.is_over:
            return
        if self._has_finished:
            return self._finish()
        self._let_go()
        self._start_workers()
        self._notify()
        self._form_if_possible()

    def _finish(self) -> None:
        """Ends the job when no member of the last world trains any more."""
        self._deadline = NEVER  # it is for workers that are to meet
        for worker in self.workers.alive():
            if worker.state is State.STARTING:
                self._kill(worker, "the job has finished")
            elif worker.state is State.WAITING:
                self._refuse(worker, "the job has finished")
        if not any(w.state is State.MEMBER for w in self.workers):
            self._end(None)

    def _failed(self, worker: Worker) -> None:
        """Keeps out the slot or the host of a worker that has failed."""
        host, slot = worker.place
        if self._options.blacklist_by == "slot":
            seconds = self.table.fail_slot(host, slot)
            what = f"slot {slot} of host {host}"
        else:
            if self.table.is_blacklisted(host):
                return  # by another of its workers
            seconds = self.table.blacklist(host)
            what = f"host {host}"
        until = "for the rest of the job" if seconds == NEVER else f"for {seconds:.0f} s"
        self._owner.say(f"{what} is not used {until}, since worker {worker.number} has failed")

    def _places(self) -> list[Place]:
        """Returns the slots that the job uses, in order."""
        places = [
            (host.name, slot)
            for host in self.table.usable
            for slot in self.table.slots_of(host.name)
        ]
        return places[: self._options.most]

    def _let_go(self) -> None:
        """Marks workers whose slots are gone, and ends those that no member depends on."""
        places = set(self._places())
        for worker in self.workers.alive():
            worker.is_leaving = worker.is_leaving or worker.place not in places
            if not worker.is_leaving:
                continue
            if worker.state is State.STARTING or self.table.is_blacklisted(worker.place[0]):
                self._kill(worker, "its host is not used any more")
            elif worker.state is State.WAITING:
                self._refuse(worker, "its slot is not the job's any more")

    def _start_workers(self) -> None:
        """Starts a worker on each slot that has none."""
        places = self._places()
        if self.meeting == 0 and not self.workers and len(places) < self._size:
            return  # wait for as many as the user has asked for
        taken = {worker.place for worker in self.workers.alive()}
        starting = [self.workers.add(place) for place in places if place not in taken]
        if starting:
            self._owner.start(starting)

    def _notify(self) -> None:
        """Tells the members that some of them leave, or that others are to join."""
        if self._is_forming:
            return
        members = [w for w in self.workers.alive() if self._is_in_world(w)]
        change = Change.NO_UPDATE
        if any(w.is_leaving and w.number not in self._announced for w in members):
            change |= Change.REMOVED
        if any(w.number not in self._announced for w in self._joiners()):
            change |= Change.ADDED
        if change is Change.NO_UPDATE:
            return
        self._announced |= {w.number for w in members if w.is_leaving}
        self._announced |= {w.number for w in self._joiners()}
        self.change += 1
        for member in members:
            self._owner.notify(member, self.change, change)

    def _is_in_world(self, worker: Worker) -> bool:
        """Returns whether a worker trains in the current world, and not in one before it."""
        return worker.state is State.MEMBER and worker.meeting == self.meeting

    def _joiners(self) -> list[Worker]:
        """Returns the workers that the members are to be interrupted for."""
        states = [State.WAITING]
        if self._awaits_starting():
            states.append(State.STARTING)
        return [worker for worker in self.workers.of_state(*states) if not worker.is_old]

    def _form_if_possible(self) -> None:
        """Forms a world if all have come that are to be in it."""
        members = self.workers.of_state(State.MEMBER)
        waiting = self.workers.of_state(State.WAITING)
        if not self._is_forming:
            alive = self.workers.alive()
            # A worker that has left an earlier world, or is still in it, tells nothing of the last.
            if any(w.state is State.MEMBER for w in alive) and not any(
                w.state is State.WAITING and w.meeting == self.meeting for w in alive
            ):
                return  # the last world trains on
            self._is_forming = True
            self._forming_since = self._clock()
            self._deadline = self._forming_since + self._options.timeout
            self._waits_for_starts = False
        if self.workers and not any(w.is_old or self.meeting == 0 for w in self.workers.staying()):
            return self._end(_NOBODY_LEFT if self.meeting else "all workers have failed")
        most = _MOST_FAILED_MEETINGS * len(self.workers.staying())
        if self._failed_meetings and self._failed_meetings >= most:
            return self._end(f"the workers cannot meet: {self._last_failure}")
        least = self._size if self.meeting == 0 else self._options.least
        self._tell_of_too_few(least)
        if members or len(waiting) < max(1, least):
            return
        if self._awaits_starting() and self.workers.of_state(State.STARTING):
            return
        self._form(waiting)

    def _tell_of_too_few(self, least: int) -> None:
        """Tells the user if the job waits for slots."""
        slots = self.table.count_usable_slots()
        if slots >= least:
            self._has_told_of_too_few = False
        elif not self._has_told_of_too_few:
            self._has_told_of_too_few = True
            self._owner.say(
                f"there are {slots} slots, and the job needs {least}; waiting for more, for up to "
                f"{self._options.timeout} s"
            )

    def _awaits_starting(self) -> bool:
        return self.meeting == 0 or self._options.join == "at_once"

    def _form(self, waiting: Sequence[Worker]) -> None:
        if self.meeting > 0 and not self._failed_meetings:
            self._resets += 1
        limit = self._options.reset_limit
        if limit is not None and self._resets > limit:
            return self._end(RESET_LIMIT.format(limit))
        ordered = rank_order(waiting, [host.name for host in self.table.usable])
        self.meeting += 1
        self._is_forming = False
        self._deadline = NEVER
        world = NextWorld(
            self.meeting, [worker.number for worker in ordered], len(self.workers), self.change
        )
        for rank, worker in enumerate(ordered):
            worker.state = State.MEMBER
            worker.rank = rank
            worker.meeting = self.meeting
        for worker in ordered:
            self._owner.enter(worker, world)

    def _time_out(self) -> None:
        """Goes on without the workers that have not come, or ends the job."""
        waiting = self.workers.of_state(State.WAITING)
        starting = self.workers.of_state(State.STARTING)
        is_enough = len(waiting) >= max(1, self._options.least)
        needs_starting = self._awaits_starting() or not is_enough
        has_slots = len(waiting) + len(starting) >= self._options.least
        if starting and needs_starting and has_slots and not self._waits_for_starts:
            self._waits_for_starts = True
            self._deadline = self._clock() + _SECONDS_TO_START
            return
        seconds = f"{self._clock() - self._forming_since:.0f}"
        if not is_enough:
            slots = self.table.count_usable_slots()
            return self._end(
                f"{len(waiting)} workers were ready after {seconds} s, on {slots} slots; the job "
                f"needs {self._options.least}"
            )
        for worker in self.workers.of_state(State.MEMBER, State.STARTING):
            self._kill(worker, f"it has not come within {seconds} s")
        if self.meeting and not any(worker.is_old for worker in waiting):
            return self._end(_NOBODY_LEFT)
        self._form(waiting)

    def _kill(self, worker: Worker, why: str) -> None:
        worker.is_leaving = True
        if not worker.is_told_to_end:
            worker.is_told_to_end = True
            self._owner.kill(worker, why)

    def _refuse(self, worker: Worker, why: str) -> None:
        worker.is_leaving = True
        if not worker.is_told_to_end:
            worker.is_told_to_end = True
            self._owner.refuse(worker, why)

    def _end(self, failure: str | None) -> None:
        self.is_over = True
        self._deadline = NEVER
        self._owner.end(failure)
