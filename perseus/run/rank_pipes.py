"""The pipes of an agent's ranks: which of them are read now, and what goes to the ranks.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import functools
import selectors
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run.agent_protocol import STDERR, STDOUT, TO_DRIVER
    from perseus.run.rank_process import Rank
else:  # in an agent, which is run by its path
    from agent_protocol import STDERR, STDOUT, TO_DRIVER
    from rank_process import Rank


class RankPipes:
    """Never blocks. What is not read stays in its pipe, so that a rank waits that writes more.

    Args:
      send: takes what has been read: its kind, the rank, and the bytes.
      has_room: returns whether `send` should get more.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        send: Callable[[int, int, bytes], None],
        has_room: Callable[[], bool],
    ) -> None:
        self._selector = selector
        self._send = send
        self._has_room = has_room
        self._had_room = True  # when the pipes were last registered
        self._holds_output = False
        self._ranks: list[Rank] = []

    def add(self, rank: Rank) -> None:
        self._ranks.append(rank)
        for kind in rank.pipes:
            self._watch(rank, kind)

    def hold_output(self, holds: bool) -> None:
        """Leaves the ranks' output in their pipes, or goes on. All else is still read."""
        if holds != self._holds_output:
            self._holds_output = holds
            self._watch_all()

    def look_for_room(self) -> None:
        """Reads nothing while there is no room for it. Call it often."""
        if self._has_room() != self._had_room:
            self._had_room = not self._had_room
            self._watch_all()

    def tell(self, rank: Rank, message: bytes) -> None:
        """Gives a rank that runs a message of the driver's."""
        if rank.driver:
            rank.driver.write(message)
            self._serve(rank, TO_DRIVER)

    def take_rest(self, rank: Rank) -> None:
        """Sends what is in the pipes of a rank that has ended, and closes them.

        A child of the rank may hold them open, and write without end.
        """
        for kind in list(rank.pipes):
            for _ in range(rank.most_reads(kind)):
                if not self._forward(rank, kind):
                    break
            self._close(rank, kind)

    def _reads(self, kind: int) -> bool:
        is_held = self._holds_output and kind in (STDOUT, STDERR)
        return self._had_room and self._has_room() and not is_held

    def _watch_all(self) -> None:
        for rank in self._ranks:
            for kind in rank.pipes:
                self._watch(rank, kind)

    def _watch(self, rank: Rank, kind: int) -> None:
        """Has the selector look after a pipe, for what is to be done with it now."""
        pipe = rank.pipes[kind]
        events = selectors.EVENT_READ if self._reads(kind) else 0
        if kind == TO_DRIVER and rank.driver and rank.driver.is_behind:
            events |= selectors.EVENT_WRITE
        is_known = pipe in self._selector.get_map()
        serve = functools.partial(self._serve, rank, kind)
        if events and is_known:
            self._selector.modify(pipe, events, serve)
        elif events:
            self._selector.register(pipe, events, serve)
        elif is_known:
            self._selector.unregister(pipe)

    def _serve(self, rank: Rank, kind: int) -> None:
        """Sends a rank what it has room for, and forwards what it says.

        Since the pipe became ready, something else may have read to its end, and closed it.
        """
        if kind not in rank.pipes:
            return
        if kind == TO_DRIVER and rank.driver:
            rank.driver.flush()
        if self._reads(kind):
            self._forward(rank, kind)
        if kind == TO_DRIVER and kind in rank.pipes:
            self._watch(rank, kind)

    def _forward(self, rank: Rank, kind: int) -> bool:
        """Sends some of what a pipe holds; returns whether there may be more."""
        if kind not in rank.pipes:
            return False
        try:
            data = rank.read(kind)
        except BlockingIOError:
            return False
        if data is None:
            self._close(rank, kind)
            return False
        if data:
            self._send(kind, rank.rank, data)
        return True

    def _close(self, rank: Rank, kind: int) -> None:
        pipe = rank.pipes.pop(kind, None)
        if pipe is None:
            return
        if pipe in self._selector.get_map():
            self._selector.unregister(pipe)
        pipe.close()
