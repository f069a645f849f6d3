"""Runs an elastic job: does what its driver decides, and tells the driver what happens."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from perseus.elastic import messages
from perseus.elastic.discovery import DISCOVERY_SECONDS, Discovery, HostSource
from perseus.elastic.drain_socket import DrainSocket
from perseus.elastic.driver import NEVER, Driver, NextWorld
from perseus.elastic.elastic_failures import ElasticFailures
from perseus.elastic.host_table import Change
from perseus.elastic.job_record import JobRecord
from perseus.elastic.options import ElasticOptions
from perseus.elastic.outliving import Outliving
from perseus.elastic.sources import FixedSource
from perseus.elastic.torch_places import TorchPlaces, TorchVariables
from perseus.elastic.workers import State, Worker
from perseus.run import agent_protocol as protocol
from perseus.run.environment import peer_timeout, rank_environment
from perseus.run.failures import how_it_ended, name_ranks
from perseus.run.host_connection import AgentConnection, Frame
from perseus.run.hosts import Host, Slot, is_local
from perseus.run.job import Job
from perseus.run.launcher import Launcher
from perseus.run.output import Output
from perseus.run.received import Received
from perseus.run.silence import SilenceWatch

__all__ = ["ElasticJob", "ElasticLauncher"]

# Workers that the job has no place for have so long to end by themselves.
_SECONDS_TO_LEAVE = 30.0
# An agent may be silent for so long, if PERSEUS_PEER_TIMEOUT is less: it is a Python program.
_LEAST_SILENCE = 10.0
# So long after the driver should have killed drained ranks, their agent does it that has asked.
_SECONDS_UNTIL_AGENTS_KILL = 10.0


@dataclass(frozen=True)
class ElasticJob:
    job: Job  # gets slots as workers are started; those that it has do not count
    output: Output
    options: ElasticOptions
    size: int  # how many slots to wait for at first
    source: HostSource
    hosts: Sequence[Host]  # that the source has found first
    places: TorchPlaces  # where ranks find those variables that torch.distributed reads


class ElasticLauncher(Launcher):
    """Runs one elastic job. The ranks of the launcher's own words are the workers' numbers.

    Args:
      record: is kept up to date for another launcher, in case this one is killed; None: then the
        ranks end with this launcher.
      interval: returns the seconds between two looks for hosts, and is asked each time.
    """

    _failures: ElasticFailures

    def __init__(
        self,
        elastic: ElasticJob,
        record: JobRecord | None = None,
        interval: Callable[[], float] = lambda: DISCOVERY_SECONDS,
    ):
        job, options, source = elastic.job, elastic.options, elastic.source
        self._slots: list[Slot] = []
        job.slots = self._slots  # before the launcher takes those that are there for running ranks
        super().__init__(job, elastic.output)
        self._options = options
        patience = peer_timeout({**os.environ, **job.environment})
        self._is_fixed = isinstance(source, FixedSource)
        self._driver = Driver(
            options, elastic.size, self, patience=patience, hosts_change=not self._is_fixed
        )
        self._first_hosts = elastic.hosts
        self._torch_variables = TorchVariables(elastic.places, self._driver.workers)
        self._found: queue.SimpleQueue[list[Host]] = queue.SimpleQueue()
        self._wakeup_read, self._wakeup_write = os.pipe()
        for end in (self._wakeup_read, self._wakeup_write):
            os.set_blocking(end, False)
        self._discovery = Discovery(
            source, self._take_hosts, interval=interval, known=elastic.hosts
        )
        self._silent_until: dict[AgentConnection, float] = {}
        self._leave_by: dict[int, float] = {}  # when to kill workers that are to end
        self._outliving = Outliving(record, job.remote_shell, job.start_timeout, self._messages.say)
        self._is_changed = False  # since the record was written
        self._drain_socket = DrainSocket(
            self._selector, job.command, self._drain, self._outliving.path
        )
        self._drains_all = False  # on a signal
        self._told_call = 1  # the last that starting workers were told of
        # Ranks that are cut off cannot say so, and ssh notices it late, or another shell never.
        self._silence = SilenceWatch(max(_LEAST_SILENCE, patience))
        # Workers that were not started, their host, and why; the driver is still to be told.
        self._not_started: list[tuple[list[int], str, str]] = []

    @property
    def results_by_rank(self) -> list[Received]:
        """Returns what the ranks of the last world have sent, without those that have failed."""
        last = [
            worker
            for worker in self._driver.workers
            if worker.meeting == self._driver.meeting
            and worker.number not in self._failures.unexpected
            and (self.results[worker.number] or not worker.is_leaving)
        ]
        return [self.results[w.number] for w in sorted(last, key=lambda w: w.rank or 0)]

    # ---- Launcher

    def _make_failures(self) -> ElasticFailures:
        return ElasticFailures(
            self._job, self._output, self._messages, self._ending, self._kill, self._is_expected
        )

    def _start(self) -> None:
        self._watch_writers()
        self._start_deadline = NEVER
        self._selector.register(self._wakeup_read, selectors.EVENT_READ, self._read_hosts)
        if fault := self._drain_socket.open():
            self._messages.log(f"no `perseusrun --drain` will reach this job: {fault}")
        self._begin()

    def _begin(self) -> None:
        self._driver.hosts_found(self._first_hosts)
        self._discovery.start()

    def _stop(self) -> None:
        self._driver.is_over = True
        self._discovery.stop()
        self._drain_socket.close()
        for host in self._hosts:
            host.terminate()  # an agent that hears nothing more without it goes on alone
        super()._stop()
        self._outliving.close()
        for end in (self._wakeup_read, self._wakeup_write):
            os.close(end)

    def _goes_on(self) -> bool:
        self._driver.is_over |= self._is_ending()
        return not self._driver.is_over or super()._goes_on()

    def _is_ending(self) -> bool:
        return self.failure is not None or self._ending.has_begun

    def _next_deadline(self) -> float:
        if self._not_started:
            return time.monotonic()
        deadlines = [super()._next_deadline(), *self._silent_until.values()]
        deadlines += [self._drain_socket.next_deadline(), self._outliving.save_again_at]
        if not self._driver.is_over:
            deadlines.append(self._driver.next_deadline())
        return min(*deadlines, *self._leave_by.values(), self._silence.next_deadline)

    def _handle_deadlines(self, now: float) -> None:
        super()._handle_deadlines(now)
        self._drain_socket.handle_deadlines(now)
        while self._not_started:
            numbers, host_name, why = self._not_started.pop(0)
            self._could_not_start(numbers, host_name, why)
        for host, until in list(self._silent_until.items()):
            if host.ready or host.ended:
                del self._silent_until[host]
                self._silence.add(host)
            elif now >= until:
                del self._silent_until[host]
                host.give_up(f"it has not answered within {self._job.start_timeout} s")
                self._leave(host)
        for number in [number for number, moment in self._leave_by.items() if now >= moment]:
            del self._leave_by[number]
            self._kill(number)
        for host in self._silence.find_silent(now):
            host.give_up(f"its agent has said nothing for {self._silence.seconds:g} s")
            self._leave(host)
        if not self._driver.is_over:
            self._driver.handle_deadlines()
        if self._is_changed or now >= self._outliving.save_again_at:
            self._save()

    def _handle(self, host: AgentConnection, frame: Frame) -> None:
        if frame.kind == protocol.TO_DRIVER:
            self._take_message(frame.rank, frame.payload)
        elif frame.kind == protocol.ERROR:
            self._running.pop(frame.rank, None)
            why = frame.payload.decode(errors="replace")
            self._failures.lost([frame.rank], f"worker {frame.rank} on host {host.host}: {why}")
            self._driver.ended(frame.rank, why)
        elif frame.kind == protocol.DRAIN:
            with contextlib.suppress(ValueError):  # the job is about to end
                self._messages.say(f"the agent on host {host.host} got SIGTERM")
                self._driver.drain(host.host)
        else:
            super()._handle(host, frame)

    def _take_message(self, number: int, message: bytes) -> None:
        match messages.parse(message):
            case messages.Ready(failure, is_out_of_reach, call, commits):
                self._driver.ready(
                    number, failure, commits, call=call, is_out_of_reach=is_out_of_reach
                )
            case messages.Begun(call):
                self._driver.began_function(number, call)
                self._tell_call()
            case messages.Finished(call):
                self._driver.finished(number, call)
            case messages.Here():
                self._driver.is_here(number)
            case messages.Drain():
                self._driver.drain_worker(number)

    def _handle_signal(self, number: int) -> None:
        if number == self._options.drain_signal:
            self._drains_all = True
            self._driver.drain_all()
        else:
            super()._handle_signal(number)

    def _drain(self, host: str) -> str:
        """Drains a host; returns what that means. Raises ValueError."""
        leaving = ", ".join(str(worker.number) for worker in self._driver.drain(host))
        return f"workers that finish their step and leave: {leaving or 'none'}"

    def _exited(self, host: AgentConnection, rank: int, status: int) -> None:
        super()._exited(host, rank, status)
        self._is_changed = True
        self._driver.is_over |= self._is_ending()
        self._leave_by.pop(rank, None)
        if self._driver.workers[rank].is_leaving:
            self._messages.log(f"worker {rank} on host {host.host} {how_it_ended(status)[0]}")
        how, code = how_it_ended(status)
        self._driver.ended(rank, how if status else None, code)

    def _lost(self, host: AgentConnection) -> None:
        lost = [rank for rank in host.ranks if rank in self._running]
        if not lost:
            return
        said = host.stderr_tail.decode(errors="replace").strip()
        words = host.given_up_because or said or "it gave no reason"
        if host.ready:
            self._outliving.lost(host)
            where = f"host {host.host} ({name_ranks(lost)})"
            message = f"the connection to {where} ended: {words}"
            self._go_on_without(lost, "was lost with its host", message)
        else:
            self._could_not_start(lost, host.host, words)

    def _could_not_start(self, numbers: Sequence[int], host: str, why: str) -> None:
        message = f"no rank could be started on host {host} ({name_ranks(numbers)}): {why}"
        self._go_on_without(numbers, "could not be started", message)

    def _go_on_without(self, numbers: Sequence[int], how: str, message: str) -> None:
        self._is_changed = True
        for number in numbers:
            del self._running[number]
        self._failures.lost(numbers, message)
        for number in numbers:
            self._driver.ended(number, how)

    # ---- Discovery

    def _take_hosts(self, hosts: list[Host]) -> None:
        """Takes what discovery finds, in its thread."""
        self._found.put(hosts)
        with contextlib.suppress(BlockingIOError):  # it is awake, and has not looked
            os.write(self._wakeup_write, b"h")

    def _read_hosts(self) -> None:
        os.read(self._wakeup_read, 4096)
        while not self._found.empty():
            hosts = self._found.get()
            self._messages.log("hosts: " + ", ".join(f"{h.name}:{h.slots}" for h in hosts))
            self._driver.hosts_found(hosts)
            self._is_changed = True

    # ---- The record

    def _save(self) -> None:
        self._is_changed = False
        self._outliving.save(self._driver.saved, self._running)

    # ---- Owner

    def start(self, starting: Sequence[Worker]) -> None:
        self._is_changed = True
        planned = self._driver.planned()
        if self._is_fixed and not self._slots:
            self._torch_variables.plan(sorted(planned, key=lambda n: planned[n].rank))
        for worker in starting:
            slot = planned[worker.number]
            self._slots.append(slot)
            self._running[worker.number] = slot
            self.results[worker.number] = Received()
            if self._job.rendezvous:
                self._job.rendezvous.add_rank(slot.host)
        for name, of_host in groupby(starting, key=lambda worker: worker.place[0]):
            slots = {worker.number: planned[worker.number] for worker in of_host}
            try:
                self._start_workers_on(name, slots)
            except (OSError, ValueError) as error:  # the host has no address, or there is no ssh
                self._not_started.append((list(slots), name, str(error)))
                continue
            if self._told_call > 1:
                for number in slots:
                    self._tell(number, messages.call_message(self._told_call))

    def _start_workers_on(self, host: str, slots: Mapping[int, Slot]) -> None:
        """Has an agent start workers, given what their ranks will be if nothing comes between."""
        description = self._job.description_for(host, list(slots.values()))
        description["has_driver"] = True
        description["seconds_to_drain"] = self._options.timeout + _SECONDS_UNTIL_AGENTS_KILL
        if not is_local(host):
            description["most_silence"] = self._silence.seconds + self._options.timeout
        description["outlives"] = self._outliving.new_agent(host, list(slots), self._output.files)
        if not description["outlives"] and is_local(host):
            description["launcher_socket"] = self._drain_socket.path
        self._save()
        description["local_size"] = max(slot.local_size for slot in slots.values())
        description["environment"]["PERSEUS_ELASTIC_JOIN"] = self._options.join
        description["environment"]["PERSEUS_ELASTIC_MEETING"] = str(self._driver.meeting)
        if self._options.drain_signal is not None:
            description["environment"]["PERSEUS_ELASTIC_DRAIN_SIGNAL"] = (
                self._options.drain_signal.name
            )
        description["ranks"] = [
            {"rank": number, "environment": self._environment(number, slot)}
            for number, slot in slots.items()
        ]
        connection = self._start_on_host(host, list(slots), description)
        self._silent_until[connection] = time.monotonic() + self._job.start_timeout

    def _environment(self, number: int, slot: Slot) -> dict[str, str]:
        number_on_host = self._driver.workers[number].place[1]
        for_torch = {} if self._driver.meeting else self._torch_variables.planned(number)
        return rank_environment(slot) | for_torch | {"PERSEUS_ELASTIC_SLOT": str(number_on_host)}

    def kill(self, worker: Worker, why: str) -> None:
        self._is_changed = True
        self._messages.log(f"killing worker {worker.number} on host {worker.place[0]}: {why}")
        self._kill(worker.number)

    def enter(self, worker: Worker, world: NextWorld) -> None:
        self._is_changed = True
        environment = self._torch_variables.entered(worker.number, world)
        assert self._job.rendezvous
        meets_at = self._job.rendezvous.seen_from(worker.place[0])
        message = messages.world_message(worker.number, world, meets_at, environment)
        self._tell(worker.number, message)
        if worker.rank == 0:
            self._messages.log(
                f"world {world.meeting}: its ranks are workers {', '.join(map(str, world.workers))}"
            )

    def refuse(self, worker: Worker, why: str) -> None:
        self._is_changed = True
        self._tell(worker.number, messages.refusal(why))
        self._leave_by[worker.number] = time.monotonic() + _SECONDS_TO_LEAVE

    def notify(self, worker: Worker, number: int, change: Change) -> None:
        self._is_changed = True
        self._tell(worker.number, messages.change_message(number, change, time.time()))

    def ask(self, worker: Worker) -> None:
        self._tell(worker.number, messages.question())

    def say(self, message: str) -> None:
        self._is_changed = True
        self._messages.say(message)

    def end(self, failure: str | None) -> None:
        if failure is not None and self._drains_all and self._options.drain_signal is not None:
            number = self._options.drain_signal
            message = f"the ranks have left, since perseusrun got {number.name}"
            return self._failures.fail(None, message, 128 + number)
        if failure is not None:
            return self._failures.fail_without(failure, self._driver.workers, self._driver.meeting)
        if self._driver.late_failures:
            return self._failures.fail_late(self._driver.late_failures, self._driver.workers)
        for worker in self._driver.workers.alive():
            if worker.state is not State.FINISHED:
                self._leave_by.setdefault(worker.number, time.monotonic() + _SECONDS_TO_LEAVE)

    def _tell_call(self) -> None:
        """Tells workers that start which calls of training functions are not for them."""
        if (call := self._driver.workers.earliest_call()) > self._told_call:
            self._told_call = call
            for worker in self._driver.workers.of_state(State.STARTING):
                self._tell(worker.number, messages.call_message(self._told_call))

    def _tell(self, number: int, message: bytes) -> None:
        for host in self._hosts:
            if number in host.ranks:
                host.tell(number, message)

    def _is_expected(self, number: int) -> bool:
        worker = self._driver.workers[number]
        return worker.is_leaving or self._driver.is_over
