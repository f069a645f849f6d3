"""Runs a job: starts its ranks on all hosts, and watches until all have ended or one has failed."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Sequence
from itertools import groupby

from perseus.run import agent_protocol as protocol
from perseus.run.ending import AGENT_SECONDS, NEVER, Ending
from perseus.run.failures import Failure, Failures, name_ranks
from perseus.run.host_connection import (
    AGENT,
    AgentConnection,
    Frame,
    HostConnection,
    JobDescription,
)
from perseus.run.hosts import is_local
from perseus.run.job import Job
from perseus.run.last_output import LastOutput
from perseus.run.launcher_messages import LauncherMessages
from perseus.run.news import parse_news
from perseus.run.output import Output
from perseus.run.received import Received
from perseus.run.signals import ENDING, PASSED_ON, ReceivedSignals, signal_name
from perseus.run.stdin_feed import StdinFeed


class Launcher:
    """Runs one job. Call `run` once. It handles signals only when called in the main thread."""

    def __init__(self, job: Job, output: Output):
        self._job = job
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._hosts: list[AgentConnection] = []
        self._flushed: set[int] = set()  # the connections that wait for room
        self._messages = LauncherMessages(output, verbose=job.verbose, quiet=job.quiet)
        self._ending = Ending(job.grace)
        self._failures = self._make_failures()
        self._running = self._failures.running
        self._signals = ReceivedSignals()
        self._feed: StdinFeed | None = None
        self._holds_back = False  # whether the ranks' output waits for our readers
        self._is_interrupted = False
        self.is_stderr_read = True  # whether all that was said there has been written
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

    def _make_failures(self) -> Failures:
        return Failures(self._job, self._output, self._messages, self._ending, self._kill)

    @property
    def failure(self) -> Failure | None:
        """Returns the failure that has ended the job."""
        return self._failures.first

    def last_lines(self) -> list[bytes]:
        """Returns the last line that each rank wrote to stderr."""
        return self._output.last_lines()

    def _start(self) -> None:
        self._watch_writers()
        by_host = sorted(self._job.slots, key=lambda slot: (slot.host, slot.rank))
        for name, slots in groupby(by_host, key=lambda slot: slot.host):
            here = list(slots)
            ranks = [slot.rank for slot in here]
            self._start_on_host(name, ranks, self._job.description_for(name, here))
        self._start_deadline = time.monotonic() + self._job.start_timeout

    def _start_on_host(
        self, name: str, ranks: Sequence[int], description: JobDescription
    ) -> AgentConnection:
        """Has an agent start these ranks on a host."""
        self._messages.log(f"host {name}: ranks {', '.join(map(str, ranks))}")
        return self._connect_to(name, ranks, self._agent_command(name), description)

    def _connect_to(
        self, name: str, ranks: Sequence[int], command: list[str], description: JobDescription
    ) -> HostConnection:
        host = HostConnection(name, ranks, command, description, self._job.stdin)
        self._selector.register(host.stderr, selectors.EVENT_READ, lambda: self._read_stderr(host))
        self._add(host)
        return host

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

    def _agent_command(self, host: str, agent: list[str] = AGENT) -> list[str]:
        if is_local(host):
            return agent
        command = self._job.remote_shell.wrap(host, agent, self._job.start_timeout)
        self._messages.log(f"host {host}: {' '.join(command)}")
        return command

    def _watch(self) -> None:
        while self._goes_on():
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
        self._failures.fail_for_victim()

    def _goes_on(self) -> bool:
        return bool(self._running) or self._awaits_agents()

    def _awaits_agents(self) -> bool:
        """Returns whether processes that ranks have started may still have the grace."""
        is_left = any(host.ready and not host.ended for host in self._hosts)
        return self._ending.has_terminated and is_left

    def _handle_deadlines(self, now: float) -> None:
        if now >= self._start_deadline:
            self._start_deadline = NEVER
            self._check_started()
        self._failures.handle_deadlines(now)
        if now >= self._ending.terminate_at:
            self._failures.fail_for_victim()
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
        if number is not None:
            message = f"{signal_name(number)}: the output is not read to its end"
            self._failures.end(message, 128 + number)
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
            self._failures.next_deadline(),
            self._output.writers.next_stall() if self._ending.has_begun else NEVER,
        )

    def _check_started(self) -> None:
        silent = [host.host for host in self._hosts if not host.ready]
        if silent:
            self._failures.fail(
                None,
                f"no answer from host {', '.join(silent)} within the start time-out of "
                f"{self._job.start_timeout} s; can you reach it with ssh without a password?",
                1,
            )

    def _read(self, host: AgentConnection) -> None:
        for frame in host.read():
            self._handle(host, frame)
        if host.ended:
            self._leave(host)

    def _leave(self, host: AgentConnection) -> None:
        self._selector.unregister(host.stdout)
        self._lost(host)

    def _handle(self, host: AgentConnection, frame: Frame) -> None:
        if frame.kind in (protocol.STDOUT, protocol.STDERR):
            self._output.write(
                frame.rank, "stdout" if frame.kind == protocol.STDOUT else "stderr", frame.payload
            )
        elif frame.kind == protocol.NEWS:
            news = parse_news(frame.payload, frame.rank, len(self._job.slots))
            self._failures.take_news(frame.rank, news)
        elif frame.kind == protocol.RESULT:
            self.results[frame.rank].append(frame.payload)
        elif frame.kind == protocol.INPUT_TAKEN and self._feed:
            self._feed.taken(protocol.COUNT.unpack(frame.payload)[0])
        elif frame.kind == protocol.EXIT:
            self._exited(host, frame.rank, int(frame.payload))
        elif frame.kind == protocol.ERROR:
            self._running.pop(frame.rank, None)
            self._failures.fail(
                frame.rank,
                f"rank {frame.rank} on host {host.host}: {frame.payload.decode(errors='replace')}",
                127,
            )

    def _exited(self, host: AgentConnection, rank: int, status: int) -> None:
        self._output.finish(rank)
        self._running.pop(rank, None)
        if self._feed and rank == 0:
            self._feed.stop()
        if status and time.monotonic() >= self._start_deadline - self._job.start_timeout / 4:
            self._check_started()  # a host that does not answer is why a rank gives up in init
        self._failures.exited(rank, host.host, status)

    def _kill(self, rank: int) -> str | None:
        for host in self._hosts:
            if rank in host.ranks:
                host.kill(rank)
                return host.host
        return None

    def _lost(self, host: AgentConnection) -> None:
        lost = [rank for rank in host.ranks if rank in self._running]
        if not lost:
            return
        for rank in lost:
            del self._running[rank]
        said = host.stderr_tail.decode(errors="replace").strip()
        words = host.given_up_because or said or "it gave no reason"
        where = f"host {host.host} ({name_ranks(lost)})"
        if not host.ready:
            return self._failures.fail(None, f"no rank could be started on {where}: {words}", 1)
        self._failures.lost(lost, f"the connection to {where} ended: {words}")

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
        message = f"{signal_name(number)}: ending {len(self._running)} ranks"
        if self._failures.end(message, 128 + number):
            self.interrupted_by = number
            self._messages.note(message)
        if number != signal.SIGINT:
            self._ending.begin_in(0)
        elif self._ending.interrupt():
            self._messages.note(f"SIGINT again: killing {len(self._running)} ranks")
            for host in self._hosts:
                host.kill_all()

    def _end_without_reader(self) -> None:
        """Ends the job as SIGPIPE would end a program, but with the grace.

        On Ctrl-C, the `tee` behind perseusrun goes, too, and the ranks must still save their work.
        """
        self._failures.end("nobody reads the output any more", 128 + signal.SIGPIPE)
        self._ending.begin_in(0)
