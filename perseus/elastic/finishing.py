"""The end of an elastic job: when its work is done, and which failures come too late to mend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perseus.elastic.forming import NEVER, Forming
from perseus.elastic.workers import State, Worker, Workers

__all__ = ["Finishing"]


class Finishing:
    """Not thread-safe.

    Args:
      hosts_change: whether discovery may find others than those that it finds first.
      workers, forming: the driver's.
      kill, refuse: end a worker, for a reason.
      end: ends the job, for a reason, or well.
    """

    def __init__(
        self,
        hosts_change: bool,
        workers: Workers,
        forming: Forming,
        kill: Callable[[Worker, str], None],
        refuse: Callable[[Worker, str], None],
        end: Callable[[str | None], None],
    ) -> None:
        self._hosts_change = hosts_change
        self._workers = workers
        self._forming = forming
        self._kill = kill
        self._refuse = refuse
        self._end = end
        # A process has ended with code 0, so that the others are about to.
        self._one_has_ended_well = False
        #: Whether a worker has begun a training function, so that all are to.
        self.have_functions = False
        #: Workers that have failed after a training function had returned: how, and the code.
        self.late_failures: dict[int, tuple[str, int]] = {}

    def saved(self) -> dict[str, Any]:
        """Returns what another driver has to know; as JSON has it."""
        return {
            "one_has_ended_well": self._one_has_ended_well,
            "late_failures": [[number, *how] for number, how in self.late_failures.items()],
            "have_functions": self.have_functions,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._one_has_ended_well = saved["one_has_ended_well"]
        self.late_failures = {number: (how, code) for number, how, code in saved["late_failures"]}
        self.have_functions = saved["have_functions"] or any(w.call for w in self._workers)

    @property
    def has_begun(self) -> bool:
        """Returns whether a worker has done its work, so that the others are about to.

        That is no longer so once any of them begins another call of a training function.
        """
        return self._one_has_ended_well or self._workers.have_returned()

    @property
    def is_final(self) -> bool:
        """Returns whether nobody can take the place any more of a worker that fails."""
        return self.has_begun and (self.have_functions or self._hosts_change)

    def ended_well(self, worker: Worker) -> None:
        """A worker's process has ended with code 0, and that was not too early."""
        self._one_has_ended_well = worker.has_done_all = True

    def is_late(self, worker: Worker, before: State) -> bool:
        """Returns whether a worker that has failed, in this state before, can have no successor."""
        return before is State.FINISHED or (
            self.is_final and before in self._working_states() and not worker.is_leaving
        )

    def failed_late(self, worker: Worker, how: str, code: int) -> None:
        """Takes a late failure for one of the job, unless it was the job that ended the worker."""
        if not worker.is_told_to_end:
            self.late_failures[worker.number] = how, code

    def exits_too_early(self, worker: Worker) -> str | None:
        """Returns how a worker has failed that has exited with code 0; None if it has not."""
        if worker.is_in_function:
            return "exited with code 0 before its training function had returned"
        # Otherwise, it may be a program without such a function.
        if self.have_functions and not self.has_begun:
            return "exited with code 0 before its training function had begun"
        return None

    def undo(self) -> list[Worker]:
        """Lets the job go on after a call, with those that are there.

        Returns workers whose late failure is one of theirs alone now.
        """
        for worker in self._workers.alive():
            if worker.state is State.FINISHED:
                worker.state = State.MEMBER  # it is about to begin that call, too
        failed = [self._workers[number] for number in self.late_failures]
        self.late_failures.clear()
        return failed

    def go_on(self, change: int) -> None:
        """Ends the job, once it has begun to end, if nobody is left to do so.

        Args:
          change: the number of the last change that workers were told of.
        """
        if self.is_final:
            self._finish()
        else:
            self._run_to_the_end(change)

    def _finish(self) -> None:
        """Ends the job when no member of the last world is left.

        Those that have not joined may wait for another call of a training function, until then.
        """
        self._forming.deadline = NEVER  # it is for workers that are to meet
        states = {worker.state for worker in self._workers.alive()}
        if self._one_has_ended_well or State.FINISHED not in states:
            for worker in self._workers.alive():
                if worker.state is State.STARTING and self._forming.meeting > 0:
                    self._kill(worker, "the job has finished")
                elif worker.state is State.WAITING:
                    self._refuse(worker, "the job has finished")
        if not self._working_states() & states:
            self._end(None)

    def _run_to_the_end(self, change: int) -> None:
        """Ends a job on fixed hosts, without training functions, when all workers have ended.

        One of them that has ended with code 0 tells nothing of the others. They may meet again, or
        the program may need no world.
        """
        if too_few := self._forming.why_too_few():
            return self._end(too_few)
        alive = self._workers.alive()
        if not alive:
            return self._end(None)
        self._forming.finished = sum(w.has_done_all for w in self._workers)
        if any(worker.state is State.WAITING for worker in alive):
            self._forming.go_on(change)
        else:
            self._forming.deadline = NEVER

    def _working_states(self) -> set[State]:
        """Returns the states of workers that have their part in the end of the job."""
        no_world = {State.STARTING} if self._forming.meeting == 0 else set[State]()
        return {State.MEMBER, State.FINISHED} | no_world
