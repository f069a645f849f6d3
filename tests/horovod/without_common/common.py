"""Horovod's tests import these from a module `common`, which its source distribution lacks."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from horovod.runner.common.util.env import get_env_rank_and_size

__all__ = ["mpi_env_rank_and_size", "temppath"]

mpi_env_rank_and_size = get_env_rank_and_size


@contextlib.contextmanager
def temppath() -> Iterator[str]:
    """Yields a path at which there is nothing, and removes what is there at the end."""
    folder = tempfile.mkdtemp()
    try:
        yield os.path.join(folder, "path")
    finally:
        shutil.rmtree(folder)
