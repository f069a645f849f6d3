"""The consequences of a rank's failure: which one ends the job, and which ranks are given up.

perseus.elastic.elastic_failures has them for jobs that go on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perseus.run.ending import NEVER, REPORT_SECONDS, Ending
from perseus.run.job import Job
from perseus.run.launcher_messages import LauncherMessages
from perseus.run.news import Accusation, Met
from perseus.run.output import Output
from perseus.run.rank_outcomes import RankOutcomes
from perseus.run.signals import signal_name
from perseus.run.worlds import Worlds


@dataclass(frozen=True)
class Failure:
    rank: int | None  # None if a host failed, or the launcher itself
    message: str
    exit_code: int


class Failures:
    """Ends the job at its first failure, unless a subclass has it go on.

    Never blocks: the owner calls `handle_deadlines`. Not thread-safe.

    Args:
      ending: is begun at a failure.
      kill: kills a rank, and returns its host; None if it has not been started.
    """

    def __init__(
        self,
        job: Job,
        output: Output,
        messages: LauncherMessages,
        ending: Ending,
        kill: Callable[[int], str | None],
    ):
        self._job = job
        self._output = output
        self._messages = messages
        self._ending = ending
        self._kill = kill
        self.running = {slot.rank: slot for slot in job.slots}
        self.first: Failure | None = None  # the one that ends the job
        self._outcomes = RankOutcomes(goes_on=False)
        self._worlds = Worlds(job.rendezvous.has_met if job.rendezvous else None)
        self._victim: Failure | None = None  # the first rank to exit that blames another
        self._kill_at: dict[int, float] = {}  # when to kill ranks that others have given up on
        self._killed: set[int] = set()
        self._check_abandoned_at = NEVER

    def next_deadline(self) -> float:
        """Returns when `handle_deadlines` must be called again, in seconds of time.monotonic."""
        return min(self._check_abandoned_at, *self._kill_at.values(), NEVER)

    def handle_deadlines(self, now: float) -> None:
        for rank in [rank for rank, moment in self._kill_at.items() if now >= moment]:
            del self._kill_at[rank]
            self._kill_given_up(rank)
        if now >= self._check_abandoned_at:
            self._check_abandoned_at = NEVER
            self._check_abandoned()

    def fail(self, rank: int | None, message: str, exit_code: int) -> None:
        """Ends the job at the first failure; later ones are its consequences."""
        if self.first:
            return
        self.first = Failure(rank, message, exit_code)
        others = f"; ending the other {len(self.running)}" if self.running else ""
        self._messages.say(f"{message}{others}")
        if rank is not None and (line := self._output.hidden_last_line(rank)):
            self._messages.say(f"the last line of rank {rank} on stderr: {line}")
        self._ending.begin_in(REPORT_SECONDS)

    def end(self, message: str, exit_code: int) -> bool:
        """Notes why the job ends, if it has not failed before; says nothing. Returns whether."""
        is_first = self.first is None
        if is_first:
            self.first = Failure(None, message, exit_code)
        return is_first

    def fail_for_victim(self) -> None:
        """Reports a rank that blames another as the failed one, if no other has failed in time."""
        victim, self._victim = self._victim, None
        if victim is None or victim.rank is None or self.first:
            return
        message = f"{victim.message}, {self._outcomes.why(victim.rank)}"
        self.fail(victim.rank, message, victim.exit_code)

    def exited(self, rank: int, host: str, status: int) -> None:
        """Notes how a rank has ended, which no longer runs."""
        self._outcomes.exited(rank, status)
        how, code = how_it_ended(status)
        if status == 0:
            self._ended(rank, how)
            # A rank that the others have lost may be about to end, as they are.
            self._check_abandoned_at = time.monotonic() + REPORT_SECONDS
            return
        failure = Failure(rank, f"rank {rank} on host {host} {how}", code)
        if self._goes_on_without([rank], how, failure.message):
            return
        self._ended(rank, how)  # tells ranks that wait for it in init
        if self.first or not self._outcomes.is_victim(rank):
            self.fail(failure.rank, failure.message, failure.exit_code)
        elif self._victim is None:
            # Another rank failed first, and is about to exit: wait for that.
            self._victim = failure
            self._ending.begin_in(REPORT_SECONDS)

    def lost(self, ranks: Sequence[int], message: str) -> None:
        """Notes that a connection has ended over which these ranks were watched."""
        if not self._goes_on_without(ranks, "lost its connection to the launcher", message):
            self.fail(None, message, 1)

    def take_news(self, rank: int, news: Met | Accusation | None) -> None:
        """Handles what a rank's engine reports on others, or some other process in its place."""
        if isinstance(news, Met):
            if not self._worlds.begins(rank, news):
                return
            self._outcomes.met(news.members)
            for member in news.members:
                self._kill_at.pop(member, None)
        elif (
            news
            and self._worlds.counts(rank, news)
            and self._outcomes.blame(
                rank,
                news.culprits,
                is_lost=news.is_lost,
                # Others that have just been started cannot know.
                running=self._worlds.members_with(rank).intersection(self.running),
            )
        ):
            for culprit in news.culprits:
                self._kill_at.setdefault(culprit, time.monotonic() + REPORT_SECONDS)

    def _kill_given_up(self, rank: int) -> None:
        if rank in self._killed:
            return  # and others have given up on it since
        self._killed.add(rank)
        if rank in self.running and (host := self._kill(rank)) is not None:
            where = f"rank {rank} on host {host}"
            self._messages.note(f"the others have given up on {where}; killing it")

    def _goes_on_without(self, ranks: Sequence[int], how: str, message: str) -> bool:
        """Returns whether the job goes on although these ranks have failed; if so, says that."""
        return False

    def _ended(self, rank: int, how: str) -> None:
        self._kill_at.pop(rank, None)
        if self._job.rendezvous:
            self._job.rendezvous.note_ended(rank, how)

    def _check_abandoned(self) -> None:
        """Ends ranks that all others have given up on, if no others are left.

        Such ranks may never end by themselves.
        """
        left = sorted(self.running)
        if not left or self.first or self._victim:
            return
        if not self._outcomes.have_been_given_up(left):
            return
        if self._outcomes.goes_on:
            for rank in left:
                self._kill_given_up(rank)
            return
        where = f"{name_ranks(left)} on host {self.running[left[0]].host}"
        self.fail(left[0], f"{where}: given up on by all others, which have ended", 1)


def how_it_ended(status: int) -> tuple[str, int]:
    """Describes how a process ended, given its status in Python; also gives its exit code."""
    if status >= 0:
        return f"exited with code {status}", status
    return f"was killed by {signal_name(-status)} ({signal.strsignal(-status)})", 128 - status


def name_ranks(ranks: Sequence[int]) -> str:
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"
