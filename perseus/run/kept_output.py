"""The output of ranks while there is no launcher to send it to.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run import agent_protocol as protocol
else:  # in an agent, which is run by its path
    import agent_protocol as protocol

#: So much is kept of each stream of each rank: the last of it.
MOST_BYTES = 256 << 10
_LONGEST_LINE = 400  # bytes of a last line that are told


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

    def last_lines(self, kind: int) -> dict[int, str]:
        """Returns the last line that is not empty of each rank's stream, if it has any."""
        lines = {}
        for (rank, each), kept in self._streams.items():
            last = bytes(kept).strip().rpartition(b"\n")[2][:_LONGEST_LINE]
            if each == kind and last:
                lines[rank] = last.decode(errors="replace")
        return lines

    def write_to_files(self, folder: str, digits: int) -> None:
        """Adds what is kept to the files that the launcher has begun (perseus.run.output).

        Args:
          digits: those of a rank's number in the name of its folder.
        """
        # Here, since an agent needs this seldom, and is to start quickly.
        if TYPE_CHECKING or __package__:
            from perseus.run.rank_file import RankFile, path_in_folder
        else:
            from rank_file import RankFile, path_in_folder

        for rank, kind, data in self.take():
            stream = "stdout" if kind == protocol.STDOUT else "stderr"
            file = RankFile(path_in_folder(Path(folder), rank, digits, stream), appends=True)
            left = memoryview(data)
            with contextlib.suppress(OSError):  # nobody is there to hear of a full disk
                while left:
                    left = left[file.put(left) :]
            file.close()

    def take(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields what is kept, as rank, kind of stream and bytes, and forgets it."""
        streams, self._streams = self._streams, {}
        self.dropped.clear()
        for (rank, kind), kept in streams.items():
            yield rank, kind, bytes(kept)
