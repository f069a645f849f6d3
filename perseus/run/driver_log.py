"""Notes what a rank of an elastic job and the driver say to each other, as far as another driver
must know it.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import json
import time
from typing import Any


class DriverLog:
    """Notes the messages of one rank (perseus.elastic.messages), and how it has ended."""

    def __init__(self) -> None:
        self.waits_since: float | None = None  # when it asked for a world, if it waits for one
        self._status: int | None = None
        self._commits = 0
        self._meeting = 0
        self._rank: int | None = None  # in its last world
        self._change = 0  # the last one that it was told of
        self._is_in_function = False
        self.has_finished = False
        self._call = 0  # of a training function, that it has begun last
        self._returned = 0  # the last call from which it has returned
        self._asks_to_leave = False

    def hear(self, message: bytes) -> None:
        """The rank says something to the driver, or a process that it has started does."""
        match _parsed(message):
            case {"says": "ready", "commits": int(commits)}:
                self.waits_since = time.monotonic()
                self._commits = commits
            case {"says": "begun", "call": int(call)}:
                self._is_in_function, self.has_finished = True, False
                self._call = call
            case {"says": "finished", "call": int(call)}:
                self._is_in_function, self.has_finished = False, True
                self._returned = call
            case {"says": "drain"}:
                self._asks_to_leave = True

    def tell(self, message: bytes) -> None:
        """The driver says something to the rank, which raises an error if it makes no sense."""
        match _parsed(message):
            case {
                "says": "world",
                "worker": worker,
                "meeting": int(meeting),
                "workers": [*workers],
                "change": int(change),
            } if worker in workers:
                self.waits_since = None
                self._meeting, self._rank = meeting, workers.index(worker)
                self._change = max(self._change, change)
            case {"says": "refusal" | "abandoned"}:
                self.waits_since = None
            case {"says": "change", "number": int(number)}:
                self._change = max(self._change, number)

    def end(self, status: int) -> None:
        """The rank has ended, with this status in Python."""
        self.waits_since = None
        self._status = status

    def report(self, number: int) -> dict[str, Any]:
        return {
            "number": number,
            "status": self._status,
            "is_waiting": self.waits_since is not None,
            "commits": self._commits,
            "meeting": self._meeting,
            "rank": self._rank,
            "change": self._change,
            "is_in_function": self._is_in_function,
            "has_finished": self.has_finished,
            "call": self._call,
            "returned": self._returned,
            "asks_to_leave": self._asks_to_leave,
        }


def _parsed(message: bytes) -> Any:
    try:
        return json.loads(message)
    except (ValueError, RecursionError):
        return None
