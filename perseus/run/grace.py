"""The end of all that an agent's ranks have started: by SIGTERM, and after a grace by SIGKILL.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run import processes
else:  # in an agent, which is run by its path
    import processes

NEVER = float("inf")
# So long after SIGKILL it is sent again, to processes that have been started meanwhile.
_SECONDS_BETWEEN_KILLS = 0.1


class Grace:
    """Never blocks. A handler of a signal may call `begin`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asked_to_end: set[int] = set()  # the children that have got SIGTERM
        self._has_killed = False
        self.deadline = NEVER  # when to call `handle_deadline`, by time.monotonic

    @property
    def has_begun(self) -> bool:
        return self.deadline != NEVER

    def begin(self) -> None:
        """Asks everything to end. A stopped process only ends once it goes on."""
        self.deadline = time.monotonic() + self._seconds
        self._ask_children_to_end()
        _signal_all(signal.SIGCONT)

    def cut_short(self) -> None:
        """Has the grace be over now."""
        self.deadline = time.monotonic()

    def handle_deadline(self) -> None:
        if time.monotonic() >= self.deadline:
            _signal_all(signal.SIGKILL)
            self.deadline = time.monotonic() + _SECONDS_BETWEEN_KILLS
            self._has_killed = True

    def note_ended(self, child: int) -> None:
        """A child has ended, so what it has started is our child now."""
        self._asked_to_end.discard(child)
        if self.has_begun:
            self._ask_children_to_end()

    def is_awaited(self) -> bool:
        """Returns whether a process has the grace still.

        A rank may be a shell that SIGTERM ends before the program that it has started.
        """
        return self.has_begun and not self._has_killed and bool(processes.descendants(os.getpid()))

    def _ask_children_to_end(self) -> None:
        """Sends SIGTERM to each rank, and to the processes of ranks that have ended.

        A rank that saves its work may need the processes that it has started: PyTorch's DataLoader
        raises an exception when one of its workers ends. So they get SIGTERM after their rank has
        ended, when they are our children.
        """
        for child in processes.children().get(os.getpid(), ()):
            if child not in self._asked_to_end:
                self._asked_to_end.add(child)
                processes.kill(child, signal.SIGTERM)


def _signal_all(number: int) -> None:
    for child in processes.descendants(os.getpid()):
        processes.kill(child, number)
