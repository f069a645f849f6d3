"""Forms the worlds of an elastic job: waits until all have come that are to be in the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perseus.elastic.host_table import HostTable
from perseus.elastic.options import ElasticOptions
from perseus.elastic.owner import NextWorld, Owner
from perseus.elastic.workers import State, Worker, Workers, rank_order
from perseus.run.ending import NEVER

__all__ = ["NEVER", "RESET_LIMIT", "Forming"]

#: Scripts and tests look for these words of Horovod's.
RESET_LIMIT = "the number of resets during elastic job exceeded limit of {}"

_NOBODY_LEFT = "no worker is left that has been in the job's last world, and so has its state"

_STATE_LOST = (
    "no worker is left that has the state of the last commit: those that had it have ended before "
    "others had got it"
)

# Workers that are starting have so long beyond the time-out, which is for slots.
_SECONDS_TO_START = 300.0

# So often in a row may the same workers fail to meet, although none of them has ended.
_MOST_FAILED_MEETINGS = 3


class Forming:
    """Not thread-safe.

    Args:
      size: how many slots the job waits for before it starts.
      workers, table: the driver's, which keeps them up to date.
      gets_slots: whether there may be slots again that there are not now.
      kill: kills a worker, for a reason.
      end: ends the job, for a reason.
    """

    def __init__(
        self,
        options: ElasticOptions,
        size: int,
        owner: Owner,
        workers: Workers,
        table: HostTable,
        clock: Callable[[], float],
        gets_slots: bool,
        kill: Callable[[Worker, str], None],
        end: Callable[[str], None],
    ) -> None:
        self._options = options
        self._size = size
        self._owner = owner
        self._workers = workers
        self._table = table
        self._clock = clock
        self._gets_slots = gets_slots
        self._kill = kill
        self._end = end
        self.meeting = 0  # of the current world; 0 before the first
        self.is_under_way = True  # whether workers are to meet in another world
        self.deadline = clock() + options.timeout  # until enough workers are there; or NEVER
        self._change = 0  # the number of the last change that workers were told of
        self._since = clock()
        self._waits_for_starts = False  # though the time-out is over
        self._has_told_of_too_few = False
        self.resets = 0  # how many worlds have come after another
        self._failed_meetings = 0  # since a worker has ended or a world has worked
        self._last_failure = ""
        #: The last call of a training function in which a worker had a commit; None: in none yet.
        self.committed_call: int | None = None
        self.finished = 0  # workers that count as there, although they do not meet any more

    def restore(self, meeting: int, resets: int, committed_call: int | None) -> None:
        """Goes on after another launcher, whose last world is said to have had this number."""
        self.meeting, self.resets, self.committed_call = meeting, resets, committed_call
        for worker in self._workers.alive():
            self._note_commits(worker)
        if meeting:
            self.is_under_way, self.deadline = False, NEVER

    @property
    def awaits_starting(self) -> bool:
        """Returns whether the next world waits for workers that have not called init yet."""
        return self.meeting == 0 or self._options.join == "at_once"

    @property
    def least(self) -> int:
        """Returns how many workers the next world needs."""
        is_first = self.meeting == 0 and (self._gets_slots or not self._workers)
        return max(1, (self._size if is_first else self._options.least) - self.finished)

    def why_too_few(self) -> str:
        """Returns why the job can never go on: it has too few slots, for ever; "" if it can."""
        slots = self._table.count_usable_slots()
        if self._gets_slots or not self._workers or slots >= self._options.least:
            return ""
        return f"too few ranks are left: {slots} of at least {self._options.least}"

    def note_ready(self, worker: Worker, failure: str) -> None:
        """A worker, in its state until now, asks for a world; its last meeting may have failed."""
        self._note_commits(worker)
        if failure:
            self._failed_meetings += 1
            self._last_failure = failure
        elif worker.state is State.MEMBER:
            self._failed_meetings = 0

    def _note_commits(self, worker: Worker) -> None:
        if worker.is_old and worker.commits > 0:
            self.committed_call = max(worker.call, self.committed_call or 0)

    def note_ended(self) -> None:
        """A worker has ended, so that the others may meet where they could not before."""
        self._failed_meetings = 0

    def go_on(self, change: int) -> None:
        """Forms a world if all have come that are to be in it.

        Args:
          change: the number of the last change that workers were told of.
        """
        self._change = change
        members = self._workers.of_state(State.MEMBER)
        waiting = self._workers.of_state(State.WAITING)
        if not self.is_under_way:
            if self._trains_on():
                return
            self._begin()
        if too_few := self.why_too_few():
            return self._end(too_few)
        if waiting and self.deadline == NEVER:
            self._begin()
        staying = self._workers.staying()
        if self._workers and not any(w.is_old or self.meeting == 0 for w in staying):
            if any(worker.leave_by is not None for worker in self._workers.alive()):
                return  # those that are drained leave first
            return self._end(_NOBODY_LEFT if self.meeting else "all workers have failed")
        most = _MOST_FAILED_MEETINGS * len(staying)
        if self._failed_meetings and self._failed_meetings >= most:
            return self._part(waiting)
        if any(worker.is_killed for worker in waiting):
            return
        self._tell_of_too_few(self.least + self.finished)
        if members or len(waiting) < self.least:
            return
        if self.awaits_starting and self._workers.of_state(State.STARTING):
            return
        self._form(waiting)

    def _part(self, waiting: Sequence[Worker]) -> None:
        """Ends workers that cannot reach the others, or the job if it is not for that.

        Their host's agent may be reached over another network than they use.
        """
        apart = [worker for worker in waiting if worker.is_out_of_reach]
        if not 0 < len(apart) < len(waiting):
            return self._end(f"the workers cannot meet: {self._last_failure}")
        self._failed_meetings = 0
        for worker in apart:
            where = f"worker {worker.number} on host {worker.place[0]}"
            self._owner.say(f"{where} cannot reach the others; killing it")
            worker.is_told_to_end = worker.is_killed = True  # and has failed
            self._owner.kill(worker, "it cannot reach the others")

    def time_out(self) -> None:
        """Goes on without the workers that have not come, or ends the job."""
        self.deadline = NEVER
        waiting = self._workers.of_state(State.WAITING)
        starting = self._workers.of_state(State.STARTING)
        least = self._options.least - self.finished
        if starting and not waiting and not self.meeting and not self._gets_slots:
            return  # they keep nobody waiting, and the program may need no world
        is_enough = len(waiting) >= max(1, least)
        needs_starting = self.awaits_starting or not is_enough
        has_slots = len(waiting) + len(starting) >= least
        if starting and needs_starting and has_slots and not self._waits_for_starts:
            self._waits_for_starts = True
            self.deadline = self._clock() + _SECONDS_TO_START
            return
        seconds = f"{self._clock() - self._since:.0f}"
        if not self._workers:
            slots = self._table.count_usable_slots()
            return self._end(
                f"after {seconds} s there are too few slots: {slots}; the job needs {self._size} "
                "to begin"
            )
        if not is_enough:
            slots = self._table.count_usable_slots()
            return self._end(
                f"{len(waiting)} workers were ready after {seconds} s, on {slots} slots; the job "
                f"needs {least}"
            )
        for worker in self._workers.of_state(State.MEMBER, State.STARTING):
            self._kill(worker, f"it has not come within {seconds} s")
        if self.meeting and not any(worker.is_old for worker in waiting):
            return self._end(_NOBODY_LEFT)
        self._form(waiting)

    def _trains_on(self) -> bool:
        """Returns whether the last world trains on: none of its workers asks for another one.

        A worker that has left an earlier world, or is still in it, tells nothing of the last.
        """
        alive = self._workers.alive()
        return any(w.state is State.MEMBER for w in alive) and not any(
            w.state is State.WAITING and w.meeting == self.meeting for w in alive
        )

    def _begin(self) -> None:
        self.is_under_way = True
        self._since = self._clock()
        self.deadline = self._since + self._options.timeout
        self._waits_for_starts = False

    def _tell_of_too_few(self, least: int) -> None:
        """Tells the user if the job waits for slots."""
        slots = self._table.count_usable_slots()
        if slots >= least:
            self._has_told_of_too_few = False
        elif not self._has_told_of_too_few:
            self._has_told_of_too_few = True
            self._owner.say(
                f"there are {slots} slots, and the job needs {least}; waiting for more, for up to "
                f"{self._options.timeout} s"
            )

    def _form(self, waiting: Sequence[Worker]) -> None:
        old = [worker for worker in waiting if worker.is_old]
        call = max((worker.call for worker in old), default=0)
        # A worker may have been in a world and not have got its state. One that has lost it says
        # so itself, with what to do.
        if call == self.committed_call and all(worker.commits == 0 for worker in old):
            return self._end(_STATE_LOST)
        if self.meeting > 0 and not self._failed_meetings:
            self.resets += 1
        limit = self._options.reset_limit
        if limit is not None and self.resets > limit:
            return self._end(RESET_LIMIT.format(limit))
        ordered = rank_order(waiting, [host.name for host in self._table.usable])
        self.meeting += 1
        self.is_under_way = False
        self.deadline = NEVER
        numbers = [worker.number for worker in ordered]
        world = NextWorld(self.meeting, numbers, len(self._workers), self._change, call)
        for rank, worker in enumerate(ordered):
            worker.state = State.MEMBER
            worker.rank = rank
            worker.meeting = self.meeting
        for worker in ordered:
            self._owner.enter(worker, world)
