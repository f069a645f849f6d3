"""A launcher that takes over the job of one that was killed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from perseus.elastic.agent_report import AgentReport
from perseus.elastic.job_record import Agent, JobRecord
from perseus.elastic.launcher import ElasticJob, ElasticLauncher
from perseus.elastic.workers import Worker
from perseus.run import agent_protocol as protocol
from perseus.run.bounded_writer import size_text
from perseus.run.failures import name_ranks
from perseus.run.host_connection import AGENT, AgentConnection, Frame, HostConnection
from perseus.run.hosts import Slot
from perseus.run.received import Received
from perseus.run.without_launcher import TAKE_OVER

__all__ = ["ResumedLauncher"]


class ResumedLauncher(ElasticLauncher):
    """First hears from all agents what has become of their ranks; the driver then goes on.

    Args:
      record: holds the lock of the job.
      agents: those that had been started by the launcher before, and may be there.
      before: what the driver before has written down.
    """

    def __init__(
        self,
        elastic: ElasticJob,
        record: JobRecord,
        agents: Sequence[Agent],
        before: Mapping[str, Any],
    ):
        super().__init__(elastic, record)
        self._taken = record
        self._agents = agents
        self._before = before
        self._awaited: dict[AgentConnection, Agent] = {}
        self._is_restored = False
        self._reports: list[tuple[HostConnection, AgentReport]] = []
        self._early: list[tuple[AgentConnection, Frame]] = []  # frames that came meanwhile
        self._early_signals: list[int] = []

    # ---- ElasticLauncher

    def _begin(self) -> None:
        self._taken.agents = list(self._agents)
        for agent in self._agents:
            command = self._agent_command(agent.host, [*AGENT, TAKE_OVER])
            host = self._connect_to(agent.host, agent.ranks, command, self._taken.call_to(agent))
            self._awaited[host] = agent
            self._silent_until[host] = time.monotonic() + self._job.start_timeout
        if not self._awaited:
            self._restore()

    def _handle(self, host: AgentConnection, frame: Frame) -> None:
        if frame.kind == protocol.REPORT:
            if host in self._awaited:
                try:
                    self._take_report(host, AgentReport.parse(json.loads(frame.payload)))
                except ValueError as error:
                    host.give_up(str(error))
        elif self._is_restored or frame.kind in (protocol.STDOUT, protocol.STDERR):
            super()._handle(host, frame)
        else:
            self._early.append((host, frame))

    def _lost(self, host: AgentConnection) -> None:
        if (agent := self._awaited.get(host)) is None:
            return super()._lost(host)
        # It may have ended in good order, meanwhile.
        if left := self._taken.report_of(agent):
            return self._take_report(host, AgentReport.parse(left))
        said = host.given_up_because or host.stderr_tail.decode(errors="replace").strip()
        where = f"host {host.host} ({name_ranks(agent.ranks)})"
        self._messages.say(f"{where} is lost: {said or 'it gave no reason'}")
        self._take_report(host, AgentReport(0, {}, 0))

    def _handle_signal(self, number: int) -> None:
        if number == self._options.drain_signal and not self._is_restored:
            self._early_signals.append(number)
        else:
            super()._handle_signal(number)

    def _save(self) -> None:
        if self._is_restored:  # else what is written down already is better
            super()._save()

    # ---- What has happened meanwhile.

    def _take_report(self, host: AgentConnection, report: AgentReport) -> None:
        agent = self._awaited.pop(host)
        assert isinstance(host, HostConnection)
        if report.process and agent.is_here:
            host.group = report.process
        self._reports.append((host, report))
        if not self._awaited and not self._is_ending():
            self._restore()

    def _restore(self) -> None:
        """Has the driver go on, once all agents have reported."""
        workers = {n: each for _, report in self._reports for n, each in report.workers.items()}
        self._driver.restore(self._before, workers)
        for worker in self._driver.workers:
            self._note_worker(worker)
        self._is_restored = True
        self._say_what_was_taken_over()
        for agent, report in self._reports:
            for number, each in report.workers.items():
                if each.status is not None and number in self._running:
                    self._exited(agent, number, each.status)
                elif each.asks_to_leave:
                    self._driver.drain_worker(number)
        self._driver.hosts_found(self._first_hosts)
        for host, frame in self._early:
            self._handle(host, frame)
        for number in self._early_signals:
            self._handle_signal(number)
        self._early.clear()
        self._discovery.start()
        self._is_changed = True

    def _note_worker(self, worker: Worker) -> None:
        host = worker.place[0]
        slot = Slot(worker.number, len(self._driver.workers), host, 0, 1, 0, 1)
        self._slots.append(slot)
        self.results[worker.number] = Received()
        assert self._job.rendezvous
        self._job.rendezvous.add_rank(host)
        if worker.is_alive:
            self._running[worker.number] = slot
        else:
            self._job.rendezvous.note_ended(worker.number, "ended before the job was taken over")

    def _say_what_was_taken_over(self) -> None:
        dropped = sum(report.dropped for _, report in self._reports)
        there = sorted(self._running)
        self._messages.note(
            f"job {self._taken.job} is taken over, with {name_ranks(there) if there else 'no rank'}"
        )
        was_alive = [n for n, (_, _, alive, *_) in enumerate(self._before["workers"]) if alive]
        gone = [number for number in was_alive if number not in self._running]
        if gone:
            self._messages.say(f"{name_ranks(gone)} ended while there was no perseusrun")
        if dropped:
            self._messages.say(
                f"{size_text(dropped)} of output is lost, which came while there was no perseusrun"
            )
