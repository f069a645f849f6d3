"""The owner of an elastic job's driver, which does what that decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from perseus.elastic.host_table import Change
from perseus.elastic.workers import Worker

__all__ = ["NextWorld", "Owner"]


@dataclass(frozen=True)
class NextWorld:
    """The news for a worker that is to be in a new world."""

    meeting: int  # counts the worlds, from 1
    workers: Sequence[int]  # in the order of their ranks
    started: int  # how many workers have ever been started
    change: int  # the number of the last change that this world takes into account
    call: int  # of a training function, in which its members are that have the state


class Owner(Protocol):
    """Does what the driver asks for. It must not call the driver back meanwhile."""

    def start(self, starting: Sequence[Worker]) -> None:
        """Starts these workers."""

    def kill(self, worker: Worker, why: str) -> None: ...

    def enter(self, worker: Worker, world: NextWorld) -> None:
        """Answers a worker that has asked for a world."""

    def refuse(self, worker: Worker, why: str) -> None:
        """Answers a worker that has asked for a world, and is to end."""

    def notify(self, worker: Worker, number: int, change: Change) -> None:
        """Tells a worker that the next world will be another one."""

    def ask(self, worker: Worker) -> None:
        """Asks a worker whether it is there, which it answers whatever its program does."""

    def say(self, message: str) -> None:
        """Tells the user."""

    def end(self, failure: str | None) -> None:
        """Ends the job and all workers that are left; it has succeeded if there is no failure."""
