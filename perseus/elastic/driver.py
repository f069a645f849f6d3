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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perseus.elastic.agent_report import WorkerReport
from perseus.elastic.change_news import ChangeNews
from perseus.elastic.finishing import Finishing
from perseus.elastic.forming import NEVER, RESET_LIMIT, Forming
from perseus.elastic.host_table import HostTable
from perseus.elastic.options import ElasticOptions
from perseus.elastic.owner import NextWorld, Owner
from perseus.elastic.roll_call import RollCall
from perseus.elastic.worker_slots import WorkerSlots
from perseus.elastic.workers import State, Worker, Workers, rank_order, worker_places
from perseus.run.hosts import Host, Slot, slots_on

__all__ = ["NEVER", "RESET_LIMIT", "Driver", "NextWorld", "Owner"]


# So many hosts an error names.
_MOST_NAMED = 20


class Driver:
    """Not thread-safe: the owner locks.

    Args:
      size: how many slots the job waits for before it starts.
      patience: the seconds that a worker may take to say that it is there.
      hosts_change: whether discovery may find others than those that it finds first.
    """

    def __init__(
        self,
        options: ElasticOptions,
        size: int,
        owner: Owner,
        table: HostTable | None = None,
        clock: Callable[[], float] = time.monotonic,
        patience: float = NEVER,
        hosts_change: bool = True,
    ) -> None:
        self._options = options
        self._size = size
        self._owner = owner
        self._clock = clock
        self.table = table or HostTable(options.cooldown_range)
        self.workers = Workers()
        self.is_over = False
        gets_slots = hosts_change or options.cooldown_range is not None
        self._forming = Forming(
            options, size, owner, self.workers, self.table, clock, gets_slots, self._kill, self._end
        )
        self._news = ChangeNews(owner, self.workers, self._forming)
        self._roll_call = RollCall(patience, clock, owner.ask)
        self._slots = WorkerSlots(options, owner, self.workers, self.table)
        self._finishing = Finishing(
            hosts_change, self.workers, self._forming, self._kill, self._refuse, self._end
        )

    @property
    def meeting(self) -> int:
        """The number of the current world; 0 before the first."""
        return self._forming.meeting

    @property
    def late_failures(self) -> Mapping[int, tuple[str, int]]:
        """Workers that have failed after a training function had returned: how, and the code."""
        return self._finishing.late_failures

    # ---- Another launcher.

    def saved(self) -> dict[str, Any]:
        """Returns what another driver has to know besides what workers' agents tell it.

        It is as JSON has it.
        """
        return {
            "meeting": self.meeting,
            "resets": self._forming.resets,
            "change": self._news.number,
            **self._finishing.saved(),
            "starts_none": self._slots.are_given_up,
            "announced": self._news.announced,
            "table": self.table.saved(),
            "workers": [
                [
                    *worker.place,
                    worker.is_alive,
                    worker.is_leaving,
                    worker.leave_by,
                    worker.has_done_all,
                    worker.call,
                    worker.returned,
                ]
                for worker in self.workers
            ],
        }

    def restore(self, saved: Mapping[str, Any], reports: Mapping[int, WorkerReport]) -> None:
        """Takes over from another driver; a worker of which nobody reports has ended.

        Call `hosts_found` then, and tell what has happened since.
        """
        self.table.restore(saved["table"])
        for number, (host, slot, is_alive, *rest) in enumerate(saved["workers"]):
            is_leaving, leave_by, has_done_all, call, returned = rest
            worker = self.workers.add((host, slot))
            worker.has_done_all, worker.call, worker.returned = has_done_all, call, returned
            if is_alive and number in reports:
                worker.is_leaving, worker.leave_by = is_leaving, leave_by
                reports[number].apply(worker)
            else:
                worker.state = State.GONE
        meeting = max([saved["meeting"], *(report.meeting for report in reports.values())])
        # Workers may have entered a world that the driver before had no time to write down.
        self._forming.restore(meeting, saved["resets"] + (meeting > max(1, saved["meeting"])))
        change = max([saved["change"], *(report.change for report in reports.values())])
        self._news.restore(change, saved["announced"])
        self._finishing.restore(saved)
        if not self._finishing.has_begun:
            self._begin_another_call()
        self._slots.are_given_up = saved["starts_none"]

    # ---- What happens.

    def hosts_found(self, hosts: Sequence[Host]) -> None:
        """Takes over what discovery has found."""
        self.table.update(hosts)
        self._update()

    def ready(
        self,
        number: int,
        failure: str = "",
        commits: int = 0,
        *,
        call: int | None = None,
        is_out_of_reach: bool = False,
    ) -> None:
        """A worker is in init and asks for a world.

        Args:
          failure: why its last meeting has failed, if it has.
          commits: how many its state has seen.
          call: of a training function, that it has begun last; None: as before.
          is_out_of_reach: whether that was because it could not reach the others.
        """
        worker = self.workers[number]
        if not worker.is_alive or self.is_over:
            return
        self._forming.note_ready(worker, failure)
        worker.state = State.WAITING
        worker.commits, worker.is_out_of_reach = commits, is_out_of_reach
        worker.has_state = worker.has_state or commits > 0
        worker.call = worker.call if call is None else call
        self._update()

    def is_here(self, number: int) -> None:
        """A worker that was asked whether it is there has answered."""
        self._roll_call.answered(number)

    def began_function(self, number: int, call: int = 1) -> None:
        """A worker has entered a training function, for the `call`th time."""
        had_finished = self._finishing.has_begun
        worker = self.workers[number]
        worker.is_in_function, worker.call = True, call
        self._finishing.have_functions = True
        if had_finished and not self._finishing.has_begun:
            self._begin_another_call()
            self._update()

    def finished(self, number: int, call: int = 1) -> None:
        """A worker has returned from this call of a training function."""
        worker = self.workers[number]
        worker.is_in_function, worker.returned = False, call
        if worker.is_alive:
            worker.state = State.FINISHED if self._finishing.has_begun else State.MEMBER
        self._update()

    def ended(self, number: int, how: str | None, code: int = 1) -> None:
        """A worker's process has ended.

        Args:
          how: "exited with code 1"; None if it exited with 0.
          code: the exit code of the job, if it fails because of that.
        """
        worker = self.workers[number]
        before = worker.state
        if before is State.GONE:
            return
        worker.state = State.GONE
        if self.is_over:
            return
        if how and self._finishing.is_late(worker, before):
            self._finishing.failed_late(worker, how, code)
        elif not worker.is_leaving:
            has_returned = before is State.FINISHED
            too_early = None if how or has_returned else self._finishing.exits_too_early(worker)
            if how or too_early:
                self._slots.failed(worker, too_early)
            else:
                self._finishing.ended_well(worker)
        self._forming.note_ended()
        self._update()

    def drain(self, host: str) -> list[Worker]:
        """Has the workers of a host finish their step and leave; returns these.

        The host is not used again unless discovery first finds it gone. Raises ValueError if the
        job has no such host, or is over.
        """
        here = [worker for worker in self.workers.alive() if worker.place[0] == host]
        known = [known.name for known in self.table.known]
        if not here and host not in known:
            raise ValueError(
                f"the job has no host '{host}'; it has {', '.join(known[:_MOST_NAMED]) or 'none'}"
                + (f", and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else "")
            )
        if self.is_over:
            raise ValueError("the job is about to end")
        self.table.drain(host)
        return self._drain(here, f"host {host}")

    def drain_worker(self, number: int) -> None:
        """Has one worker, which asks for it, finish its step and leave; its slot stays unused."""
        worker = self.workers[number]
        if self.is_over or not worker.is_alive or worker.is_leaving:
            return
        self.table.drain_slot(*worker.place)
        self._drain([worker], f"slot {worker.place[1]} of host {worker.place[0]}")

    def drain_all(self) -> None:
        """Has all workers finish their step and leave. The job ends then, for want of workers."""
        if self.is_over or self._slots.are_given_up:
            return
        self._slots.are_given_up = True
        self._drain(self.workers.alive(), "the job")
        if not self.workers.alive():
            self._end("it is drained before it has any workers")

    def planned(self) -> dict[int, Slot]:
        """Returns the ranks of the next world, by worker, if all come that are to stay."""
        hosts = [host.name for host in self.table.usable]
        ordered = rank_order(self.workers.staying(), hosts)
        slots = slots_on(*worker_places(ordered))
        return {worker.number: slot for worker, slot in zip(ordered, slots, strict=True)}

    def next_deadline(self) -> float:
        """Returns when `handle_deadlines` must be called again, by the clock; or NEVER."""
        others = (
            self.table.next_deadline(),
            self.workers.next_to_leave(),
            self._roll_call.next_deadline(),
        )
        return min([self._forming.deadline, *(moment for moment in others if moment is not None)])

    def handle_deadlines(self) -> None:
        now = self._clock()
        cooldown = self.table.next_deadline()
        if cooldown is not None and now >= cooldown:
            self.table.refresh()
            self._update()
        for worker in self.workers.slow_to_leave(now):
            self._owner.say(
                f"worker {worker.number} on host {worker.place[0]} has not come to the end of its "
                f"step within {self._options.timeout} s since it was drained; killing it"
            )
            self._kill(worker, "it is drained, and has not left")
        for worker in self._roll_call.silent_workers():
            why = "it is to leave" if worker.is_leaving else "the others wait for it"
            self._owner.say(
                f"worker {worker.number} on host {worker.place[0]} says nothing while {why}; "
                "killing it"
            )
            worker.is_told_to_end = worker.is_killed = True  # and has failed, if it was to stay
            self._owner.kill(worker, "it says nothing")
        if now >= self._forming.deadline:
            self._forming.time_out()

    # ---- What follows from it.

    def _update(self) -> None:
        if self.is_over:
            return
        if self._finishing.has_begun:
            self._finishing.go_on(self._news.number)
        else:
            self._let_go()
            self._start_workers()
            self._news.tell()
            self._forming.go_on(self._news.number)
            if not self._forming.is_under_way:  # a world may just have formed
                self._let_go()
                self._news.tell()
        self._call_the_roll()

    def _call_the_roll(self) -> None:
        """Looks after those who may be stopped: members whom others wait for, and who leave."""
        states = [State.MEMBER] if self._finishing.has_begun or self._forming.is_under_way else []
        leaving = (State.MEMBER, State.WAITING)
        self._roll_call.await_workers(
            worker
            for worker in self.workers.alive()
            if worker.state in (leaving if worker.is_leaving else states)
            and not worker.is_killed
            and not self.is_over
        )

    def _begin_another_call(self) -> None:
        for worker in self._finishing.undo():
            self._slots.failed(worker)

    def _drain(self, workers: Sequence[Worker], what: str) -> list[Worker]:
        """Lets workers go at the end of their step; returns those that have not been already."""
        leaving = [w for w in workers if w.state is not State.FINISHED and w.leave_by is None]
        for worker in leaving:
            worker.is_leaving = True
            worker.leave_by = self._clock() + self._options.timeout
        names = ", ".join(str(worker.number) for worker in leaving)
        self._owner.say(
            f"{what} is drained; workers that finish their step and leave: {names or 'none'}"
        )
        self._update()
        return leaving

    def _let_go(self) -> None:
        """Marks workers whose slots are gone, and ends those that no member depends on."""
        places = set(self._slots.places())
        self._slots.keep_the_state(places)
        for worker in self.workers.alive():
            if worker.awaits_heir:
                worker.is_leaving = worker.has_lost_slot = False
            elif worker.place not in places and not worker.is_leaving:
                worker.is_leaving = worker.has_lost_slot = True
            if not worker.is_leaving:
                continue
            if worker.state is State.STARTING or self.table.is_blacklisted(worker.place[0]):
                self._kill(worker, "its host is not used any more")
            elif worker.state is State.WAITING:
                self._refuse(worker, "its slot is not the job's any more")

    def _start_workers(self) -> None:
        """Starts a worker on each slot that has none."""
        places = self._slots.places()
        if self.meeting == 0 and not self.workers and len(places) < self._size:
            return  # wait for as many as the user has asked for
        taken = {worker.place for worker in self.workers.alive()}
        starting = [self.workers.add(place) for place in places if place not in taken]
        if starting:
            self._owner.start(starting)

    def _kill(self, worker: Worker, why: str) -> None:
        worker.is_leaving = True
        if not worker.is_told_to_end:
            worker.is_told_to_end = worker.is_killed = True
            self._owner.kill(worker, why)

    def _refuse(self, worker: Worker, why: str) -> None:
        worker.is_leaving = True
        if not worker.is_told_to_end:
            worker.is_told_to_end = True
            self._owner.refuse(worker, why)

    def _end(self, failure: str | None) -> None:
        self.is_over = True
        self._forming.deadline = NEVER
        self._owner.end(failure)
