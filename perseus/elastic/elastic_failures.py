"""The consequences of a worker's failure in an elastic job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

    def _goes_on_without(self, ranks: Sequence[int], how: str, message: str) -> bool:
        if self.first:
            return False
        for rank in ranks:
            self._ended(rank, how)
        if not all(map(self._is_expected, ranks)):
            self._messages.say(f"{message}; the other {len(self.running)} go on")
        return True
