"""A file that keeps what a rank writes to one of its streams."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from perseus.run.own_file import open_folder, open_to_write


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
