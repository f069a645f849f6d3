"""What the driver of an elastic job tells a process, each a JSON object.

perseus.elastic.messages has the driver's end. Two messages come from the process's agent: that the
job ends (perseus.run.rank_sockets), and that nobody has taken it over
(perseus.run.without_launcher).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = [
    "Abandoned",
    "Call",
    "Change",
    "Ending",
    "Message",
    "Question",
    "Refusal",
    "World",
    "parse",
]

# So much of a message that makes no sense an error quotes.
_MOST_QUOTED = 200


@dataclass(frozen=True)
class World:
    """A world that this process is to be in."""

    worker: int  # the number of this process among all that the job has ever started
    meeting: int  # counts the worlds, from 1
    workers: list[int]  # in the order of their ranks
    started: int  # how many processes the job has ever started
    change: int  # the number of the last change that this world takes into account
    call: int  # of a training function, in which the job is; the first is 1
    rendezvous: str  # where its ranks meet: host and port
    environment: dict[str, str]  # where torch.distributed finds its ranks, once they are in it


@dataclass(frozen=True)
class Change:
    """The next world is going to be another one."""

    number: int
    what: int  # 1: ranks leave; 2: ranks join; 3: both
    moment: float  # seconds of the Unix epoch


@dataclass(frozen=True)
class Call:
    """The job is in this call of a training function, or in a later one."""

    number: int


@dataclass(frozen=True)
class Refusal:
    """The job has no place for this process any more."""

    why: str


@dataclass(frozen=True)
class Abandoned:
    """The launcher has died, and nobody has taken the job over in time."""

    why: str


@dataclass(frozen=True)
class Question:
    """The process is to say that it is there."""


@dataclass(frozen=True)
class Ending:
    """The job ends, and SIGTERM comes next."""


Message: TypeAlias = World | Change | Call | Refusal | Abandoned | Question | Ending


def parse(message: bytes) -> Message:
    """Raises ValueError, which quotes the message, for one that makes no sense."""
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        said = None
    match said:
        case {"says": "world"}:
            world = _world_in(said)
            if world is not None:
                return world
        case {"says": "change", "number": int(number), "change": int(what), "moment": moment} if (
            isinstance(moment, (int, float))
        ):
            return Change(number, what, moment)
        case {"says": "call", "number": int(number)}:
            return Call(number)
        case {"says": "refusal", "why": str(why)}:
            return Refusal(why)
        case {"says": "abandoned", "why": str(why)}:
            return Abandoned(why)
        case {"says": "are you there"}:
            return Question()
        case {"says": "ending"}:
            return Ending()
    quoted = message[:_MOST_QUOTED].decode(errors="replace")
    raise ValueError(
        f"the job's driver has said what makes no sense to this process: {quoted!r}; perseusrun "
        "and its ranks must have the same version of Perseus"
    )


def _world_in(said: dict[str, Any]) -> World | None:
    match said:
        case {
            "worker": int(worker),
            "meeting": int(meeting),
            "workers": [*workers],
            "started": int(started),
            "change": int(change),
            "call": int(call),
            "rendezvous": str(rendezvous),
            "environment": dict(environment),
        } if worker in workers and _are(int, workers) and _are(str, environment.values()):
            return World(worker, meeting, workers, started, change, call, rendezvous, environment)
    return None


def _are(kind: type, values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)
