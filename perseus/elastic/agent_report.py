"""The report of an agent to a launcher that takes it over (perseus.run.without_launcher)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perseus.elastic.workers import State, Worker

__all__ = ["AgentReport", "WorkerReport"]


@dataclass(frozen=True)
class WorkerReport:
    """The state of a worker, by what it and the driver before have said to each other last."""

    number: int
    status: int | None  # that of Python's subprocess; None for a process that runs
    is_waiting: bool  # for a world
    commits: int
    meeting: int  # of the last world that it was told of; 0: none
    rank: int | None  # in that world
    change: int  # the last one that it was told of
    is_in_function: bool
    has_finished: bool
    call: int  # of a training function, that it has begun last
    returned: int  # the last call from which it has returned
    asks_to_leave: bool

    def apply(self, worker: Worker) -> None:
        """Has a worker be in the state that it is in."""
        worker.rank, worker.meeting = self.rank, self.meeting
        worker.commits, worker.is_in_function = self.commits, self.is_in_function
        worker.has_state = self.commits > 0 or self.meeting == 1
        worker.call, worker.returned = self.call, self.returned
        if self.has_finished:
            worker.state = State.FINISHED
        elif self.is_waiting:
            worker.state = State.WAITING
        elif self.meeting:
            worker.state = State.MEMBER


@dataclass(frozen=True)
class AgentReport:
    process: int  # the leader of the agent's session
    workers: dict[int, WorkerReport]
    dropped: int  # bytes of output

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> AgentReport:
        """Raises ValueError for what makes no sense."""
        try:
            workers = [WorkerReport(**each) for each in said["ranks"]]
            dropped = sum(int(count) for count in said["dropped"].values())
            return cls(int(said["process"]), {w.number: w for w in workers}, dropped)
        except (KeyError, TypeError, AttributeError):
            raise ValueError("its agent's report makes no sense") from None
