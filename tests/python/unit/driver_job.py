"""The driver of elastic jobs, with an owner that notes what it is asked for, and its own clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perseus.elastic.driver import Driver, NextWorld
from perseus.elastic.host_table import Change, HostTable
from perseus.elastic.options import ElasticOptions
from perseus.elastic.workers import Worker
from perseus.run.hosts import Host


class Job:
    """Owns a driver, and plays its workers."""

    def __init__(self, size: int, options: ElasticOptions, hosts_change: bool = True) -> None:
        self.now = 1000.0
        self.started: list[Worker] = []
        self.killed: list[int] = []
        self.refused: list[int] = []
        self.worlds: dict[int, list[int]] = {}  # by meeting
        self.calls: list[int] = []  # in which the members of each world are
        self.told: list[tuple[int, Change]] = []
        self.ends: list[str | None] = []
        self.asked: list[int] = []
        self.said: list[str] = []
        table = HostTable(options.cooldown_range, clock=lambda: self.now, uniform=lambda: 0.0)
        self.driver = Driver(
            options, size, self, table, lambda: self.now, patience=30, hosts_change=hosts_change
        )

    def start(self, starting: Sequence[Worker]) -> None:
        self.started += starting

    def kill(self, worker: Worker, why: str) -> None:
        self.killed.append(worker.number)

    def enter(self, worker: Worker, world: NextWorld) -> None:
        if world.meeting not in self.worlds:
            self.worlds[world.meeting] = list(world.workers)
            self.calls.append(world.call)
        assert self.worlds[world.meeting] == world.workers
        assert worker.number in world.workers
        assert world.started == len(self.driver.workers)

    def refuse(self, worker: Worker, why: str) -> None:
        self.refused.append(worker.number)

    def notify(self, worker: Worker, number: int, change: Change) -> None:
        self.told.append((worker.number, change))

    def ask(self, worker: Worker) -> None:
        self.asked.append(worker.number)

    def say(self, message: str) -> None:
        self.said.append(message)

    def end(self, failure: str | None) -> None:
        self.ends.append(failure)

    # ---- What the tests do.

    def hosts(self, **slots: int) -> None:
        self.driver.hosts_found([Host(name, count) for name, count in slots.items()])

    def ready(self, *numbers: int, failure: str = "", commits: int = 0, **more: Any) -> None:
        for number in numbers:
            self.driver.ready(number, failure, commits, **more)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.driver.handle_deadlines()

    def wait_while_all_answer(self, seconds: int) -> None:
        for _ in range(seconds):
            for worker in self.started:
                self.driver.is_here(worker.number)
            self.wait(1)

    @property
    def places(self) -> list[tuple[str, int]]:
        return [worker.place for worker in self.started]

    @property
    def world(self) -> list[int]:
        """The workers of the last world, by rank."""
        return self.worlds[max(self.worlds)]


def job(size: int, least: int = 1, hosts_change: bool = True, **options: Any) -> Job:
    return Job(size, ElasticOptions(least=least, **options), hosts_change)


def running(job: Job, **slots: int) -> Job:
    """A job whose workers train, on all of these slots, if they are given."""
    if slots:
        job.hosts(**slots)
    job.ready(*(worker.number for worker in job.started))
    assert len(job.world) == len(job.started)
    return job
