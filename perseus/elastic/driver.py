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
from perseus.elastic.forming import NEVER, RESET_LIMIT, Forming
from perseus.elastic.host_table import HostTable
from perseus.elastic.options import ElasticOptions
from perseus.elastic.owner import NextWorld, Owner
from perseus.elastic.roll_call import RollCall
from perseus.elastic.workers import Place, State, Worker, Workers, rank_order, worker_places
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
        self._hosts_change = hosts_change
        gets_slots = hosts_change or options.cooldown_range is not None
        self._forming = Forming(
            options, size, owner, self.workers, self.table, clock, gets_slots, self._kill, self._end
        )
        self._news = ChangeNews(owner, self.workers, self._forming)
        self._roll_call = RollCall(patience, clock, owner.ask)
        # Whether a process has ended with code 0, so that the others are about to.
        self._one_has_ended_well = False
        #: Workers that have failed after their training functions had returned: how, and the code.
        self.late_failures: dict[int, tuple[str, int]] = {}
        self._have_functions = False  # whether a worker has begun one, so that all are to
        self._starts_none = False  # since the job is drained as a whole

    @property
    def meeting(self) -> int:
        """The number of the current world; 0 before the first."""
        return self._forming.meeting

    @property
    def _has_finished(self) -> bool:
        """Whether a worker has done its work, so that the others are about to.

        That is no longer so once any of them begins another call of a training function.
        """
        return self._one_has_ended_well or self.workers.have_returned()

    # ---- Another launcher.

    def saved(self) -> dict[str, Any]:
        """Returns what another driver has to know besides what workers' agents tell it.

        It is as JSON has it.
        """
        return {
            "meeting": self.meeting,
            "resets": self._forming.resets,
            "committed_call": self._forming.committed_call,
            "change": self._news.number,
            "one_has_ended_well": self._one_has_ended_well,
            "late_failures": [[number, *how] for number, how in self.late_failures.items()],
            "have_functions": self._have_functions,
            "starts_none": self._starts_none,
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
        resets = saved["resets"] + (meeting > max(1, saved["meeting"]))
        self._forming.restore(meeting, resets, saved["committed_call"])
        change = max([saved["change"], *(report.change for report in reports.values())])
        self._news.restore(change, saved["announced"])
        self._one_has_ended_well = saved["one_has_ended_well"]
        self.late_failures = {number: (how, code) for number, how, code in saved["late_failures"]}
        self._have_functions = saved["have_functions"] or any(w.call for w in self.workers)
        if not self._has_finished:
            self._begin_another_call()
        self._starts_none = saved["starts_none"]

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
        worker.commits, worker.is_out_of_reach = commits, is_out_of_reach
        worker.call = worker.call if call is None else call
        self._forming.note_ready(worker, failure)
        worker.state = State.WAITING
        self._update()

    def is_here(self, number: int) -> None:
        """A worker that was asked whether it is there has answered."""
        self._roll_call.answered(number)

    def began_function(self, number: int, call: int = 1) -> None:
        """A worker has entered a training function, for the `call`th time."""
        had_finished = self._has_finished
        worker = self.workers[number]
        worker.is_in_function, worker.call = True, call
        self._have_functions = True
        if had_finished and not self._has_finished:
            self._begin_another_call()
            self._update()

    def finished(self, number: int, call: int = 1) -> None:
        """A worker has returned from this call of a training function."""
        worker = self.workers[number]
        worker.is_in_function, worker.returned = False, call
        if worker.is_alive:
            worker.state = State.FINISHED if self._has_finished else State.MEMBER
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
        too_early = None if how or before is State.FINISHED else self._exits_too_early(worker)
        if how and before is State.FINISHED and not worker.is_told_to_end:
            self.late_failures[number] = how, code
        elif not worker.is_leaving:
            if how or too_early:
                self._failed(worker, too_early)
            else:
                self._one_has_ended_well = worker.has_done_all = True
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
        if self.is_over or self._starts_none:
            return
        self._starts_none = True
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
        if self._has_finished and (self._have_functions or self._hosts_change):
            self._finish()
        elif self._has_finished:
            self._run_to_the_end()
        else:
            self._let_go()
            self._start_workers()
            self._news.tell()
            self._forming.go_on(self._news.number)
        self._call_the_roll()

    def _call_the_roll(self) -> None:
        """Looks after those who may be stopped: members whom others wait for, and who leave."""
        states = [State.MEMBER] if self._has_finished or self._forming.is_under_way else []
        leaving = (State.MEMBER, State.WAITING)
        self._roll_call.await_workers(
            worker
            for worker in self.workers.alive()
            if worker.state in (leaving if worker.is_leaving else states)
            and not worker.is_killed
            and not self.is_over
        )

    def _begin_another_call(self) -> None:
        """Lets the job go on after a call, with those that are there."""
        for worker in self.workers.alive():
            if worker.state is State.FINISHED:
                worker.state = State.MEMBER  # it is about to begin that call, too
        for number in self.late_failures:
            self._failed(self.workers[number])
        self.late_failures.clear()

    def _finish(self) -> None:
        """Ends the job when no member of the last world is left.

        Those that have not joined may wait for another call of a training function, until then.
        """
        self._forming.deadline = NEVER  # it is for workers that are to meet
        states = {worker.state for worker in self.workers.alive()}
        if self._one_has_ended_well or State.FINISHED not in states:
            for worker in self.workers.alive():
                if worker.state is State.STARTING and self.meeting > 0:
                    self._kill(worker, "the job has finished")
                elif worker.state is State.WAITING:
                    self._refuse(worker, "the job has finished")
        still_run = {State.MEMBER, State.FINISHED}
        if self.meeting == 0:
            still_run.add(State.STARTING)
        if not still_run & states:
            self._end(None)

    def _run_to_the_end(self) -> None:
        """Ends a job on fixed hosts, without training functions, when all workers have ended.

        One of them that has ended with code 0 tells nothing of the others. They may meet again, or
        the program may need no world.
        """
        if too_few := self._forming.why_too_few():
            return self._end(too_few)
        alive = self.workers.alive()
        if not alive:
            return self._end(None)
        self._forming.finished = sum(w.has_done_all for w in self.workers)
        if any(worker.state is State.WAITING for worker in alive):
            self._forming.go_on(self._news.number)
        else:
            self._forming.deadline = NEVER

    def _exits_too_early(self, worker: Worker) -> str | None:
        """Returns how a worker has failed that has exited with code 0; None if it has not."""
        if worker.is_in_function:
            return "exited with code 0 before its training function had returned"
        # Otherwise, it may be a program without such a function.
        if self._have_functions and not self._has_finished:
            return "exited with code 0 before its training function had begun"
        return None

    def _failed(self, worker: Worker, how: str | None = None) -> None:
        """Keeps out the slot or the host of a worker that has failed.

        Args:
          how: if the user has not been told yet.
        """
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
        why = f"has failed: it {how}" if how else "has failed"
        self._owner.say(f"{what} is not used {until}, since worker {worker.number} {why}")

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

    def _places(self) -> list[Place]:
        """Returns the slots that the job uses, in order: those that it has come first."""
        if self._starts_none:
            return []
        places = [
            (host.name, slot)
            for host in self.table.usable
            for slot in self.table.slots_of(host.name)
        ]
        had = {worker.place for worker in self.workers.staying()}
        # A slot that is back after a cooldown takes the place of none that is in use.
        chosen = set(sorted(places, key=lambda place: place not in had)[: self._options.most])
        return [place for place in places if place in chosen]

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
