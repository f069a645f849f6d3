"""The output of ranks while there is no launcher to send it to.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

#: So much is kept of each stream of each rank: the last of it.
MOST_BYTES = 256 << 10


class KeptOutput:
    """Keeps whole lines, unless one is longer than there is room for."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, int], bytearray] = {}
        self.dropped: Counter[int] = Counter()  # bytes, by rank

    def add(self, rank: int, kind: int, data: bytes) -> None:
        kept = self._streams.setdefault((rank, kind), bytearray())
        kept += data
        # Dropping in large pieces moves the rest seldom.
        if len(kept) > 2 * MOST_BYTES:
            end = len(kept) - MOST_BYTES
            end = 1 + kept.find(b"\n", end) or end
            self.dropped[rank] += end
            del kept[:end]

    def take(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields what is kept, as rank, kind of stream and bytes, and forgets it."""
        streams, self._streams = self._streams, {}
        self.dropped.clear()
        for (rank, kind), kept in streams.items():
            yield rank, kind, bytes(kept)
