"""A file that keeps what a rank writes to one of its streams.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING or __package__:
    from perseus.run.own_file import open_folder, open_to_write
else:  # in an agent, which is run by its path
    from own_file import open_folder, open_to_write


def path_in_folder(folder: Path, rank: int, digits: int, stream: str) -> Path:
    """Returns where the folder of a job's output has a stream of a rank."""
    return folder / f"rank.{rank:0{digits}}" / stream


class RankFile:
    """Is opened when the first bytes are written, in the thread that writes them.

    Args:
      appends: adds to a file that is there.
    """

    def __init__(self, path: Path, appends: bool = False):
        self._path = path
        self._appends = appends
        self._file: BinaryIO | None = None

    def put(self, data: memoryview) -> int:
        """Writes some of the bytes; returns how many."""
        if self._file is None:
            os.close(open_folder(self._path.parent, makes=True))
            self._file = open_to_write(self._path, appends=self._appends)
        return self._file.write(data)

    def close(self) -> None:
        if self._file:
            self._file.close()
