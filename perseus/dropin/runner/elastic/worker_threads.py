"""The owner of a driver whose workers run in threads of the program's own process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from perseus.dropin.runner.common.util.hosts import SlotInfo, slot_info
from perseus.dropin.runner.elastic.discovery import HostManager
from perseus.elastic.driver import NEVER, Driver, NextWorld
from perseus.elastic.host_table import Change
from perseus.elastic.options import ElasticOptions
from perseus.elastic.workers import Place, State, Worker
from perseus.run.hosts import Host, slots_on

__all__ = ["CreateWorker", "Outcome", "WorkerThreads"]

#: An exit code, and when the worker ended.
Outcome = tuple[int, float]
#: Runs a worker until it ends, or one of the events is set.
CreateWorker = Callable[[SlotInfo, list[threading.Event]], Outcome]


class WorkerThreads:
    """Owns a driver: does what it asks for, and tells it what the workers' threads do.

    Any thread may call it. It shares its lock with the HostManager, whose table the driver uses.

    Args:
      on_world: is called with the places of each new world, in the order of ranks.
      on_change: is called, without the lock, when rank 0 is to hear that the hosts have changed.
    """

    def __init__(
        self,
        options: ElasticOptions,
        hosts: HostManager,
        on_world: Callable[[list[SlotInfo]], object],
        on_change: Callable[[Change], object],
    ) -> None:
        self._options = options
        self._hosts = hosts
        self._on_world = on_world
        self._on_change = on_change
        self.changed = threading.Condition(hosts.lock)
        self.shutdown = threading.Event()  # set when the job is over
        self.failure: str | None = None
        self._driver: Driver | None = None
        self._create: CreateWorker | None = None
        self._threads: list[threading.Thread] = []
        self._events: dict[int, threading.Event] = {}  # by worker: it is to end
        self._outcomes: dict[int, Outcome] = {}  # by worker
        self._assigned: list[SlotInfo] = []
        self._meeting = 0  # which these places are of; 0: they are planned
        self._changes: list[Change] = []  # of which rank 0 has not been told yet

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Holds the lock; then wakes those who wait, and tells rank 0 of changes."""
        with self.changed:
            yield
            changes, self._changes = self._changes, []
            self.changed.notify_all()
        for change in changes:
            self._on_change(change)

    @contextlib.contextmanager
    def _in_thread(self) -> Iterator[None]:
        """For a thread of ours: ends the job with the reason if the thread fails."""
        try:
            yield
        except Exception as error:
            logging.exception("a thread of the elastic driver has failed")
            text = str(error)
            self.stop(f"the driver has failed: {type(error).__name__}{text and ': '}{text}")

    # ---- What the program does.

    def start_job(self, create: CreateWorker) -> None:
        """Starts workers on the slots that are there; the caller has waited for enough of them."""
        least = self._options.least
        with self.acting():
            self._create = create
            self._driver = Driver(self._options, least, self, self._hosts.table)
            self._driver.hosts_found(self._hosts.table.known)
        threading.Thread(target=self._keep_time, name="elastic deadlines", daemon=True).start()

    def look_again(self) -> None:
        with self.acting():
            if self._driver is not None:
                self._driver.hosts_found(self._hosts.table.known)

    def hosts_found(self, hosts: Sequence[Host]) -> Change:
        """Takes over what discovery has found. Returns what that changes before the job starts."""
        with self.acting():
            if self._driver is None:
                return self._hosts.table.update(hosts)
            self._driver.hosts_found(hosts)
            return Change.NO_UPDATE

    def meet(self, place: Place) -> None:
        """Has the worker on this slot ask for a world, and waits until that is answered."""
        with self.acting():
            driver, worker = self._driver, self._at(place)
            if driver is None or worker is None or driver.is_over or worker.is_told_to_end:
                logging.info("the job has no worker on slot %d of host %s", place[1], place[0])
                return
            driver.ready(worker.number)
        with self.changed:
            self.changed.wait_for(
                lambda: worker.state is not State.WAITING or worker.is_told_to_end or driver.is_over
            )

    def assigned(self) -> list[SlotInfo]:
        """Returns the places in the last world, or those planned for the first, by rank."""
        with self.changed:
            return list(self._assigned)

    def is_told_to_end(self, place: Place) -> bool:
        """Returns whether the job has no place for the last worker on this slot any more."""
        with self.changed:
            workers = list(self._driver.workers) if self._driver else []
            return any([w.is_told_to_end for w in workers if w.place == place][-1:])

    def in_state(self, *states: State) -> set[Place]:
        """Returns the slots of those of the workers that are alive and in these states."""
        with self.changed:
            workers = self._driver.workers.alive() if self._driver else []
            return {worker.place for worker in workers if worker.state in states}

    def ended_with(self, is_success: bool) -> set[Place]:
        """Returns the slots of workers that have ended so."""
        with self.changed:
            return {
                self._driver.workers[number].place
                for number, (code, _) in self._outcomes.items()
                if self._driver is not None and (code == 0) is is_success
            }

    @property
    def meeting(self) -> int:
        """Counts the worlds."""
        with self.changed:
            return self._meeting

    def outcomes(self) -> dict[Place, Outcome]:
        """Waits for all workers; returns the outcomes of those of the last world, if there was one.

        In a job without one, those of all workers.
        """
        while True:
            with self.changed:
                running = next((t for t in self._threads if t.is_alive()), None)
            if running is None:
                break
            running.join()
        with self.changed:
            if self._driver is None:
                return {}
            last = [w for w in self._driver.workers if w.meeting == self._driver.meeting]
            return {w.place: self._outcomes[w.number] for w in last if w.number in self._outcomes}

    def stop(self, failure: str | None) -> None:
        """Ends the job, whatever its workers do."""
        with self.changed:
            if self._driver is not None:
                self._driver.is_over = True
            self.end(failure)

    def _at(self, place: Place) -> Worker | None:
        workers = self._driver.workers.alive() if self._driver else []
        return next((worker for worker in workers if worker.place == place), None)

    # ---- What the threads do.

    def _run(self, create: CreateWorker, worker: Worker, slot: SlotInfo) -> None:
        events = [
            self.shutdown,
            self._hosts.get_host_event(slot.hostname),
            self._events[worker.number],
        ]
        try:
            code, moment = create(slot, events)
        except Exception:
            logging.exception("worker %s[%d] has raised an error", slot.hostname, slot.local_rank)
            code, moment = 1, time.time()
        with self._in_thread(), self.acting():
            self._outcomes[worker.number] = code, moment
            driver = self._driver
            if driver is None or driver.is_over:
                return
            if code == 0 and worker.state is State.MEMBER:
                driver.finished(worker.number)  # it was told to leave, but has done its work
            driver.ended(worker.number, None if code == 0 else f"exited with code {code}")

    def _keep_time(self) -> None:
        driver = self._driver
        with self._in_thread():
            while driver is not None and not driver.is_over:
                with self.changed:
                    deadline = driver.next_deadline()
                    seconds = deadline - time.monotonic()
                    if seconds > 0:
                        self.changed.wait(None if deadline == NEVER else seconds)
                        continue
                with self.acting():
                    if not driver.is_over:
                        driver.handle_deadlines()

    # ---- Owner

    def start(self, starting: Sequence[Worker]) -> None:
        assert self._driver is not None and self._create is not None
        planned = {number: slot_info(slot) for number, slot in self._driver.planned().items()}
        if not self._meeting:
            self._take_world(0, list(planned.values()))
        for worker in starting:
            self._events[worker.number] = threading.Event()
            thread = threading.Thread(
                target=self._run,
                args=(self._create, worker, planned[worker.number]),
                name=f"worker {worker.number}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def kill(self, worker: Worker, why: str) -> None:
        logging.info("worker %d is to end: %s", worker.number, why)
        self._events[worker.number].set()

    def enter(self, worker: Worker, world: NextWorld) -> None:
        assert self._driver is not None
        if world.meeting != self._meeting:
            members = [self._driver.workers[number] for number in world.workers]
            self._take_world(world.meeting, _slots(members))

    def refuse(self, worker: Worker, why: str) -> None:
        logging.info("worker %d has no place any more: %s", worker.number, why)

    def notify(self, worker: Worker, number: int, change: Change) -> None:
        if worker.rank == 0:
            self._changes.append(change)

    def ask(self, worker: Worker) -> None:
        """Horovod's workers have nothing to answer with."""

    def say(self, message: str) -> None:
        logging.warning("%s", message)

    def end(self, failure: str | None) -> None:
        self.failure = self.failure or failure
        self.shutdown.set()
        self.changed.notify_all()

    def _take_world(self, meeting: int, slots: list[SlotInfo]) -> None:
        self._meeting = meeting
        self._assigned = slots
        self._on_world(slots)


def _slots(workers: Sequence[Worker]) -> list[SlotInfo]:
    return [slot_info(slot) for slot in slots_on([worker.place[0] for worker in workers])]
