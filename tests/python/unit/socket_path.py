"""Paths of sockets, which must be short: an address has room for 107 letters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from perseus.elastic.drain_socket import path_in


@contextlib.contextmanager
def short(path: Path) -> Iterator[str]:
    """Gives a short path to the same place, for as long as the context lasts."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield path_in(folder, path.name)
    finally:
        os.close(folder)
