"""The consequences of a worker's failure in an elastic job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perseus.elastic.workers import Workers
from perseus.run.ending import Ending
from perseus.run.failures import Failures
from perseus.run.job import Job
from perseus.run.launcher_messages import LauncherMessages
from perseus.run.output import Output
from perseus.run.rank_outcomes import RankOutcomes

__all__ = ["ElasticFailures"]


class ElasticFailures(Failures):
    """The job goes on without whoever fails; its driver says when it ends."""

    def __init__(
        self,
        job: Job,
        output: Output,
        lines: LauncherMessages,
        ending: Ending,
        kill: Callable[[int], str | None],
        is_expected: Callable[[int], bool],
    ):
        super().__init__(job, output, lines, ending, kill)
        self._outcomes = RankOutcomes(goes_on=True)
        self._is_expected = is_expected
        #: How ranks have failed that were to stay, the first one first.
        self.unexpected: dict[int, str] = {}

    def fail_without(self, why: str, workers: Workers, meeting: int) -> None:
        """Ends the job, and names a rank of its last world that has failed, if there is one."""
        failed = [n for n in reversed(self.unexpected) if workers[n].meeting == meeting]
        if not failed:
            return self.fail(None, why, 1)
        number = self._culprit_of(failed)
        where = f"rank {number} on host {workers[number].place[0]}"
        self.fail(number, f"{why}; {where} {self.unexpected[number]}", 1)

    def fail_late(self, late: Mapping[int, tuple[str, int]], workers: Workers) -> None:
        """Ends the job, whose work is done, with the failure of a rank that came after it.

        Args:
          late: how such ranks have failed, and the exit codes.
        """
        number = self._culprit_of(list(late))
        how, code = late[number]
        worker = workers[number]
        where = f"rank {number} on host {worker.place[0]}"
        after = ", after others had ended"
        if worker.call > worker.returned:
            after = ", after its training function had returned on another rank"
        elif worker.call:
            after = " after its training function had returned"
        self.fail(number, f"the job has failed: {where} {how}{after}", code)

    def _culprit_of(self, failed: Sequence[int]) -> int:
        """Returns the first of these ranks that blames no other for its failure, or the first."""
        return next((rank for rank in failed if not self._outcomes.is_victim(rank)), failed[0])

    def _goes_on_without(self, ranks: Sequence[int], how: str, message: str) -> bool:
        if self.first:
            return False
        for rank in ranks:
            self._ended(rank, how)
        unexpected = [rank for rank in ranks if not self._is_expected(rank)]
        if unexpected:
            self.unexpected |= dict.fromkeys(unexpected, how)
            others = f"; the other {len(self.running)} go on" if self.running else ""
            self._messages.say(f"{message}{others}")
        return True
