"""What a rank gets from the rank before it and gives to the rank after it, by way of links."""

from __future__ import annotations

import threading
from collections.abc import Callable

from perseus.pipeline.layerwise.chunks import Chunk
from perseus.pipeline.layerwise.failures import Failure
from perseus.pipeline.layerwise.links import BackwardEnd, ForwardEnd, NeighbourFailed
from perseus_core import AbortedError

__all__ = ["Neighbours"]


class Neighbours:
    """Both links of a rank. For the thread that trains.

    Args:
      before, after: ranks of the world; None at the ends of the pipeline.
      room: chunks that may be under way on a link.
    """

    def __init__(self, before: int | None, after: int | None, process_set: int, room: int) -> None:
        self._awake = threading.Condition()
        self._before = None if before is None else BackwardEnd(before, process_set, self._awake)
        self._after = None if after is None else ForwardEnd(after, process_set, room, self._awake)
        self._ends = [end for end in (self._before, self._after) if end is not None]

    @property
    def is_first(self) -> bool:
        return self._before is None

    @property
    def is_last(self) -> bool:
        return self._after is None

    def get(self) -> Chunk:
        """Waits for the next chunk from the rank before."""
        assert self._before is not None
        self._wait(self._before.has_chunk)
        return self._before.get()

    def wait_for_room(self) -> None:
        """Waits until the link to the rank after may take another chunk."""
        assert self._after is not None
        self._wait(self._after.has_room)

    def put(self, chunk: Chunk) -> None:
        assert self._after is not None
        self._after.put(chunk)

    def look(self) -> None:
        """Raises NeighbourFailed if a neighbour has said so, and AbortedError if one is gone."""
        for end in self._ends:
            end.look()

    def _wait(self, holds: Callable[[], bool]) -> None:
        self.look()
        while not holds():
            with self._awake:
                self._awake.wait_for(lambda: any(end.has_news() for end in self._ends))
            self.look()

    def close(self, failure: Failure | None) -> Failure | None:
        """Tells both neighbours that this rank is done or has failed, and waits until they are.

        Returns the failure, also one that a neighbour tells of only now. Raises AbortedError if a
        neighbour is gone, once the other one has been told.
        """
        gone = None
        for end in self._ends:
            try:
                end.end(failure)
            except AbortedError as error:
                gone = error
        if gone is not None:
            raise gone
        while not all(end.is_over() for end in self._ends):
            try:
                self._wait(lambda: all(end.is_over() for end in self._ends))
            except NeighbourFailed as told:
                failure = failure or told.failure
        for end in self._ends:
            end.finish_sends()
        return failure
