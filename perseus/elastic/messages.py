"""The words between the driver of an elastic job and its workers, each a JSON object.

A worker says `ready` each time that it wants a world: how many commits its state has seen, in which
call of a training function, why its last meeting failed, and whether it reached nobody there. It is
told `world` or `refusal`. It says `begun` and `finished` of each call of its training functions,
and `drain` when it is to leave. It is told `call`, before it has been in a world, when the others
are in a later call, `change` when the next world will be another one, and `ending`, by its agent,
before SIGTERM ends it with its job. It is asked `are you there`, and says `here`. Its agent tells
it `abandoned` if it has waited in vain for another launcher than one that has died, and otherwise
notes what these messages say (perseus.run.driver_log).

perseus_core.driver_messages has the worker's end, and test_driver_link.py holds the two against
each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perseus.elastic.host_table import Change
from perseus.elastic.owner import NextWorld

__all__ = [
    "Begun",
    "Drain",
    "Finished",
    "Here",
    "Ready",
    "call_message",
    "change_message",
    "parse",
    "question",
    "refusal",
    "world_message",
]


@dataclass(frozen=True)
class Ready:
    failure: str  # of its last meeting; "" if that has not failed
    is_out_of_reach: bool  # whether that was because it could not reach the others
    call: int  # of a training function, that it has begun last; 0: none
    commits: int  # that its state has seen


@dataclass(frozen=True)
class Begun:
    call: int  # of a training function; the first is 1


@dataclass(frozen=True)
class Finished:
    call: int


@dataclass(frozen=True)
class Drain:
    pass


@dataclass(frozen=True)
class Here:
    pass


def parse(message: bytes) -> Ready | Begun | Finished | Drain | Here | None:
    """Returns None for what makes no sense: the words of another program of the worker's."""
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        return None
    match said:
        case {
            "says": "ready",
            "failure": str(failure),
            "is_out_of_reach": bool(is_out_of_reach),
            "call": int(call),
            "commits": int(commits),
        }:
            return Ready(failure, is_out_of_reach, call, commits)
        case {"says": "begun", "call": int(call)}:
            return Begun(call)
        case {"says": "finished", "call": int(call)}:
            return Finished(call)
        case {"says": "drain"}:
            return Drain()
        case {"says": "here"}:
            return Here()
    return None


def world_message(
    worker: int, world: NextWorld, rendezvous: str, environment: Mapping[str, str]
) -> bytes:
    """Returns the news for a worker that is to be in a world.

    Args:
      rendezvous: where its ranks meet.
      environment: what the worker is to set once it is in the world.
    """
    return _encode(
        says="world",
        worker=worker,
        meeting=world.meeting,
        workers=list(world.workers),
        started=world.started,
        change=world.change,
        call=world.call,
        rendezvous=rendezvous,
        environment=dict(environment),
    )


def refusal(why: str) -> bytes:
    return _encode(says="refusal", why=why)


def change_message(number: int, change: Change, moment: float) -> bytes:
    """`moment` is in seconds of the Unix epoch."""
    return _encode(says="change", number=number, change=int(change), moment=moment)


def call_message(number: int) -> bytes:
    return _encode(says="call", number=number)


def question() -> bytes:
    return _encode(says="are you there")


def _encode(**said: Any) -> bytes:
    return json.dumps(said).encode()
