"""Removes what jobs have left all of whose processes were killed."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from perseus.elastic.drain_socket import folders
from perseus.run import job_folder
from perseus.run.own_file import open_folder

__all__ = ["remove_remains"]

# What is newer may belong to a job that just begins.
_LEAST_SECONDS = 60.0


def remove_remains() -> None:
    """Removes sockets and folders of this user's dead jobs, wherever jobs have them.

    Another job's launcher calls this when it begins, as do `--drain`, `--resume` and `--end`.
    """
    for place in folders():
        with contextlib.suppress(OSError):
            folder = open_folder(place)
            try:
                for name in os.listdir(folder):
                    _look_at(place, folder, name)
            finally:
                os.close(folder)


def _look_at(place: Path, folder: int, name: str) -> None:
    with contextlib.suppress(OSError):  # it is gone, or another user's
        if name.endswith(job_folder.SOCKET):
            # A job with a folder may be taken over, and listen there again.
            job = name.removesuffix(job_folder.SOCKET) + job_folder.FOLDER
            is_unfinished = name.startswith(".")
            if not (place / job).exists() and not (is_unfinished and _is_new(folder, name)):
                job_folder.remove_dead_socket(folder, name)
        elif name.endswith((job_folder.FOLDER, job_folder.AGENTS)) and not _is_new(folder, name):
            _remove_dead_folder(str(place / name))


def _remove_dead_folder(path: str) -> None:
    """Removes the folder of a job that has neither a launcher nor an agent."""
    folder = job_folder.open_job_folder(path)
    try:
        lock = job_folder.take_lock(folder)
        if lock is None:
            return
        try:
            if not job_folder.may_be_taken_over(folder):
                job_folder.remove_job_folder(folder, path)
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def _is_new(folder: int, name: str) -> bool:
    changed = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
    return time.time() < changed + _LEAST_SECONDS
