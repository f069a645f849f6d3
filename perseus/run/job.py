"""Runs a job: starts its ranks on all hosts, and watches until all have ended or one has failed."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from perseus.run import agent_protocol as protocol
from perseus.run.ending import (
    AGENT_SECONDS,
    DEFAULT_GRACE_SECONDS,
    NEVER,
    REPORT_SECONDS,
    Ending,
)
from perseus.run.environment import (
    DEFAULT_START_TIMEOUT,
    exported,
    job_environment,
    rank_environment,
)
from perseus.run.host_connection import (
    AGENT,
    AgentConnection,
    Frame,
    HostConnection,
    RemoteShell,
)
from perseus.run.hosts import Slot, is_local
from perseus.run.last_output import LastOutput
from perseus.run.news import Accusation, Met, parse_news
from perseus.run.output import Output
from perseus.run.rank_outcomes import RankOutcomes
from perseus.run.received import Received
from perseus.run.rendezvous import ServedRendezvous
from perseus.run.signals import ENDING, PASSED_ON, ReceivedSignals, signal_name
from perseus.run.stdin_feed import StdinFeed


@dataclass
class Job:
    """Describes the job that a launcher runs."""

    command: Sequence[str]
    slots: Sequence[Slot]
    secret: str
    rendezvous: ServedRendezvous | None = None  # None if the ranks meet without the launcher
    # The job goes on without failed ranks while this many are left; None: one failure ends it.
    least: int | None = None
    # Maps a host to the variables that tell its ranks where rank 0 is, for torch.distributed.
    master: Callable[[str], Mapping[str, str]] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # settings for all ranks
    directory: str = field(default_factory=os.getcwd)  # in which the ranks begin
    remote_shell: RemoteShell = field(default_factory=RemoteShell)
    start_timeout: int = DEFAULT_START_TIMEOUT
    stdin: bytes = b""  # the input of every rank
    stdin_fd: int | None = None  # what rank 0 reads, in place of that
    grace: float = DEFAULT_GRACE_SECONDS  # from SIGTERM to SIGKILL
    verbose: bool = False
    quiet: bool = False  # whether the launcher only speaks of failures


@dataclass(frozen=True)
class Failure:
    rank: int | None  # None if a host failed, or the launcher itself
    message: str
    exit_code: int


class Launcher:
    """Runs one job. Call `run` once. It handles signals only when called in the main thread."""

    def __init__(self, job: Job, output: Output):
        self._job = job
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._hosts: list[AgentConnection] = []
        self._flushed: set[int] = set()  # the connections that wait for room
        self._running = {slot.rank: slot for slot in job.slots}
        self._ending = Ending(job.grace)
        self._signals = ReceivedSignals()
        self._outcomes = RankOutcomes(len(job.slots), job.least)
        self._victim: Failure | None = None  # the first rank to exit that blames another
        self._kill_at: dict[int, float] = {}  # when to kill ranks that others have given up on
        self._killed: set[int] = set()
        self._check_abandoned_at = NEVER
        self._feed: StdinFeed | None = None
        self._holds_back = False  # whether the ranks' output waits for our readers
        self._is_interrupted = False
        self.is_stderr_read = True  # whether all that was said there has been written
        self.failure: Failure | None = None
        self.interrupted_by: int | None = None  # the signal, if one has ended the job
        self.results = {slot.rank: Received() for slot in job.slots}

    def run(self) -> int:
        """Runs the job; returns its exit code.

        That is 0, the exit code of the rank that failed (128 + signal if a signal killed it), or
        128 + the signal that ended the launcher.
        """
        with self._signals.handling(self._selector):
            is_over = False
            try:
                self._start()
                self._watch()
                is_over = True
            finally:
                self._stop()
                for slot in self._job.slots:
                    self._output.finish(slot.rank)
                self._write_out(is_over)
        return self.failure.exit_code if self.failure else 0

    def last_lines(self) -> list[bytes]:
        """Returns the last line that each rank wrote to stderr."""
        return self._output.last_lines()

    def _start(self) -> None:
        self._watch_writers()
        by_host = sorted(self._job.slots, key=lambda slot: (slot.host, slot.rank))
        for name, slots in groupby(by_host, key=lambda slot: slot.host):
            here = list(slots)
            host = HostConnection(
                name,
                [slot.rank for slot in here],
                self._agent_command(name),
                self._description(name, here),
                self._job.stdin,
            )
            self._selector.register(
                host.stderr, selectors.EVENT_READ, lambda host=host: self._read_stderr(host)
            )
            self._add(host)
        self._start_deadline = time.monotonic() + self._job.start_timeout

    def _watch_writers(self) -> None:
        self._output.writers.register(self._selector)

    def _add(self, host: AgentConnection) -> None:
        self._hosts.append(host)
        self._selector.register(host.stdout, selectors.EVENT_READ, lambda: self._read(host))
        host.blocked = lambda: self._flush(host)
        self._flush(host)
        if self._holds_back:
            host.hold(True)
        if self._job.stdin_fd is not None and 0 in host.ranks:
            self._feed = StdinFeed(self._job.stdin_fd, self._selector, host.feed)

    def _stop(self) -> None:
        """Closes the connections to all agents.

        After an orderly end, the agents get time to end; otherwise they have had that time already.
        """
        if self._feed:
            self._feed.stop()
        for host in self._hosts:
            host.close(AGENT_SECONDS if not self._running else 0)

    def _agent_command(self, host: str) -> list[str]:
        if is_local(host):
            return AGENT
        command = self._job.remote_shell.wrap(host, AGENT, self._job.start_timeout)
        self._log(f"host {host}: {' '.join(command)}")
        return command

    def _description(self, host: str, slots: list[Slot]) -> dict[str, object]:
        environment = dict(os.environ) if is_local(host) else exported(os.environ)
        environment |= self._job.environment
        environment |= job_environment(self._job.secret)
        if self._job.rendezvous:
            environment["PERSEUS_RENDEZVOUS"] = self._job.rendezvous.seen_from(host)
        if self._job.least is not None:
            environment["PERSEUS_SURVIVORS"] = "1"
        if self._job.master:
            environment |= self._job.master(host)
        self._log(f"host {host}: ranks {', '.join(str(slot.rank) for slot in slots)}")
        return {
            "command": list(self._job.command),
            "directory": self._job.directory,
            "environment": environment,
            "forwards_stdin": self._job.stdin_fd is not None,
            "grace": self._job.grace,
            "local_size": len(slots),
            "shares_processors": True,
            "ranks": [{"rank": slot.rank, "environment": rank_environment(slot)} for slot in slots],
        }

    def _watch(self) -> None:
        while self._running or self._awaits_agents():
            for key, _ in self._selector.select(self._seconds_left()):
                key.data()
            for number in self._signals.take():
                self._handle_signal(number)
            self._output.take_errors()
            if self._output.reader_is_gone:
                self._end_without_reader()
            now = time.monotonic()
            self._handle_deadlines(now)
            self._hold_back(now)
            if now >= self._ending.give_up_at:
                break
        self._fail_for_victim()

    def _awaits_agents(self) -> bool:
        """Returns whether processes that ranks have started may still have the grace."""
        is_left = any(host.ready and not host.ended for host in self._hosts)
        return self._ending.has_terminated and is_left

    def _handle_deadlines(self, now: float) -> None:
        if now >= self._start_deadline:
            self._start_deadline = NEVER
            self._check_started()
        for rank in [rank for rank, moment in self._kill_at.items() if now >= moment]:
            del self._kill_at[rank]
            self._kill(rank)
        if now >= self._check_abandoned_at:
            self._check_abandoned_at = NEVER
            self._check_abandoned()
        if now >= self._ending.terminate_at:
            self._fail_for_victim()
            self._ending.terminate()
            self._terminate()

    def _hold_back(self, now: float) -> None:
        """Holds the ranks' output back while our readers are behind."""
        ends = self._ending.has_begun
        holds_back = self._output.writers.must_hold_back(now, ends=ends)
        if holds_back != self._holds_back:
            self._holds_back = holds_back
            for host in self._hosts:
                host.hold(holds_back)

    def _write_out(self, is_over: bool) -> None:
        """Waits until our output is written, for as long as docs/launching.md says.

        Args:
          is_over: the job has ended, and no exception of ours has ended it.
        """
        has_failed = not is_over or self.failure is not None
        last = LastOutput(self._output, self._signals, has_failed=has_failed)
        number = last.write(is_hurried=self._is_interrupted)
        if number is not None and self.failure is None:
            message = f"{signal_name(number)}: the output is not read to its end"
            self.failure = Failure(None, message, 128 + number)
        self.is_stderr_read = not self._output.is_stuck("stderr")
        self._output.close()

    def _terminate(self) -> None:
        for host in self._hosts:
            if host.ready:
                host.terminate()
            else:
                for rank in host.ranks:
                    self._running.pop(rank, None)

    def _seconds_left(self) -> float | None:
        soonest = self._next_deadline()
        return None if soonest == NEVER else max(0.0, soonest - time.monotonic())

    def _next_deadline(self) -> float:
        return min(
            self._start_deadline,
            self._ending.terminate_at,
            self._ending.give_up_at,
            *self._kill_at.values(),
            self._check_abandoned_at,
            self._output.writers.next_stall() if self._ending.has_begun else NEVER,
        )

    def _check_started(self) -> None:
        silent = [host.host for host in self._hosts if not host.ready]
        if silent:
            self._fail(
                None,
                f"no answer from host {', '.join(silent)} within the start time-out of "
                f"{self._job.start_timeout} s; can you reach it with ssh without a password?",
                1,
            )

    def _read(self, host: AgentConnection) -> None:
        for frame in host.read():
            self._handle(host, frame)
        if host.ended:
            self._selector.unregister(host.stdout)
            self._lost(host)

    def _handle(self, host: AgentConnection, frame: Frame) -> None:
        if frame.kind in (protocol.STDOUT, protocol.STDERR):
            self._output.write(
                frame.rank, "stdout" if frame.kind == protocol.STDOUT else "stderr", frame.payload
            )
        elif frame.kind == protocol.NEWS:
            self._take_news(frame.rank, parse_news(frame.payload, frame.rank, len(self._job.slots)))
        elif frame.kind == protocol.RESULT:
            self.results[frame.rank].append(frame.payload)
        elif frame.kind == protocol.INPUT_TAKEN and self._feed:
            self._feed.taken(protocol.COUNT.unpack(frame.payload)[0])
        elif frame.kind == protocol.EXIT:
            self._exited(host, frame.rank, int(frame.payload))
        elif frame.kind == protocol.ERROR:
            self._running.pop(frame.rank, None)
            self._fail(
                frame.rank, f"rank {frame.rank} on host {host.host}: {frame.payload.decode()}", 127
            )

    def _take_news(self, rank: int, news: Met | Accusation | None) -> None:
        """Handles what a rank's engine reports on others."""
        if isinstance(news, Met):
            self._outcomes.met(news.members)
            for member in news.members:
                self._kill_at.pop(member, None)
        elif news and self._outcomes.blame(
            rank, news.culprits, is_lost=news.is_lost, running=self._running
        ):
            for culprit in news.culprits:
                self._kill_at.setdefault(culprit, time.monotonic() + REPORT_SECONDS)

    def _kill(self, rank: int) -> None:
        if rank in self._killed:
            return  # and others have given up on it since
        self._killed.add(rank)
        for host in self._hosts:
            if rank in self._running and rank in host.ranks:
                self._note(
                    f"the others have given up on rank {rank} on host {host.host}; killing it"
                )
                host.kill(rank)

    def _goes_on_without(self, ranks: Sequence[int], how: str, message: str) -> bool:
        """Returns whether enough ranks are left after these have failed; if so, prints that."""
        if not self._outcomes.fail(ranks) or self.failure:
            return False
        for rank in ranks:
            self._ended(rank, how)
        self._say(f"{message}; the other {self._outcomes.left} go on")
        return True

    def _ended(self, rank: int, how: str) -> None:
        self._kill_at.pop(rank, None)
        if self._job.rendezvous:
            self._job.rendezvous.note_ended(rank, how)

    def _check_abandoned(self) -> None:
        """Ends ranks that all others have given up on, if no others are left.

        Such ranks may never end by themselves.
        """
        left = sorted(self._running)
        left_out = self._job.rendezvous.left_out() if self._job.rendezvous else ()
        if not left or self.failure or self._victim:
            return
        if not self._outcomes.have_been_given_up(left, left_out):
            return
        if self._job.least is not None:
            for rank in left:
                self._kill(rank)
            return
        where = f"{name_ranks(left)} on host {self._running[left[0]].host}"
        self._fail(left[0], f"{where}: given up on by all others, which have ended", 1)

    def _exited(self, host: AgentConnection, rank: int, status: int) -> None:
        self._output.finish(rank)
        self._running.pop(rank, None)
        if self._feed and rank == 0:
            self._feed.stop()
        self._outcomes.exited(rank, status)
        how, code = how_it_ended(status)
        if status == 0:
            self._ended(rank, how)
            # A rank that the others have lost may be about to end, as they are.
            self._check_abandoned_at = time.monotonic() + REPORT_SECONDS
            return
        if time.monotonic() >= self._start_deadline - self._job.start_timeout / 4:
            self._check_started()  # a host that does not answer is why a rank gives up in init
        failure = Failure(rank, f"rank {rank} on host {host.host} {how}", code)
        if self._goes_on_without([rank], how, failure.message):
            return
        if self._job.least is None:
            self._ended(rank, how)  # tells ranks that wait for it in init
        elif not self.failure:
            left = f"too few ranks are left: {self._outcomes.left} of at least {self._job.least}"
            self._fail(rank, f"{failure.message}; {left}", failure.exit_code)
        if self.failure or not self._outcomes.is_victim(rank):
            self._fail(failure.rank, failure.message, failure.exit_code)
        elif self._victim is None:
            # Another rank failed first, and is about to exit: wait for that.
            self._victim = failure
            self._ending.begin_in(REPORT_SECONDS)

    def _fail_for_victim(self) -> None:
        """Reports a rank that blames another as the failed one, if no other has failed in time."""
        victim, self._victim = self._victim, None
        if victim is None or victim.rank is None or self.failure:
            return
        message = f"{victim.message}, {self._outcomes.why(victim.rank)}"
        self._fail(victim.rank, message, victim.exit_code)

    def _lost(self, host: AgentConnection) -> None:
        lost = [rank for rank in host.ranks if rank in self._running]
        if not lost:
            return
        for rank in lost:
            del self._running[rank]
        words = host.stderr_tail.decode(errors="replace").strip() or "it gave no reason"
        where = f"host {host.host} ({name_ranks(lost)})"
        if not host.ready:
            return self._fail(None, f"no rank could be started on {where}: {words}", 1)
        message = f"the connection to {where} ended: {words}"
        if not self._goes_on_without(lost, "lost its connection to the launcher", message):
            self._fail(None, message, 1)

    def _read_stderr(self, host: HostConnection) -> None:
        if not host.read_stderr():
            self._selector.unregister(host.stderr)

    def _flush(self, host: AgentConnection) -> None:
        """Sends what the host's connection has to send, now and whenever there is room."""
        fd = host.writable_fd
        if not host.flush():
            if fd in self._flushed:
                self._flushed.remove(fd)
                self._selector.unregister(fd)
        elif fd not in self._flushed:
            self._flushed.add(fd)
            self._selector.register(fd, selectors.EVENT_WRITE, lambda: self._flush(host))

    def _fail(self, rank: int | None, message: str, exit_code: int) -> None:
        """Ends the job at the first failure; later ones are its consequences."""
        if self.failure:
            return
        self.failure = Failure(rank, message, exit_code)
        others = f"; ending the other {len(self._running)}" if self._running else ""
        self._say(f"{message}{others}")
        if rank is not None and (line := self._output.hidden_last_line(rank)):
            self._say(f"the last line of rank {rank} on stderr: {line}")
        self._ending.begin_in(REPORT_SECONDS)

    def _handle_signal(self, number: int) -> None:
        if number in PASSED_ON:
            for host in self._hosts:
                host.signal(number)
        elif number in ENDING:
            self._interrupted(number)
        elif self._feed:  # SIGCONT: we may be in the foreground of our terminal now, or no more
            self._feed.update()

    def _interrupted(self, number: int) -> None:
        self._is_interrupted = True
        if self.failure is None:
            self.interrupted_by = number
            message = f"{signal_name(number)}: ending {len(self._running)} ranks"
            self.failure = Failure(None, message, 128 + number)
            self._note(message)
        if number != signal.SIGINT:
            self._ending.begin_in(0)
        elif self._ending.interrupt():
            self._note(f"SIGINT again: killing {len(self._running)} ranks")
            for host in self._hosts:
                host.kill_all()

    def _end_without_reader(self) -> None:
        """Ends the job as SIGPIPE would end a program, but with the grace.

        On Ctrl-C, the `tee` behind perseusrun goes, too, and the ranks must still save their work.
        """
        if self.failure is None:
            self.failure = Failure(None, "nobody reads the output any more", 128 + signal.SIGPIPE)
        self._ending.begin_in(0)

    def _log(self, message: str) -> None:
        if self._job.verbose:
            self._say(message)

    def _note(self, message: str) -> None:
        """Says what is good to know, and no failure."""
        if not self._job.quiet:
            self._say(message)

    def _say(self, message: str) -> None:
        self._output.say(f"perseusrun: {message}")


def how_it_ended(status: int) -> tuple[str, int]:
    """Describes how a process ended, given its status in Python; also gives its exit code."""
    if status >= 0:
        return f"exited with code {status}", status
    return f"was killed by {signal_name(-status)} ({signal.strsignal(-status)})", 128 - status


def name_ranks(ranks: Sequence[int]) -> str:
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"
