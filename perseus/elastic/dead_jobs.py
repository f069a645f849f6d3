"""What jobs have left all of whose processes have ended: is removed, or tells why they have."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from perseus.elastic.drain_socket import folders
from perseus.run import job_folder
from perseus.run.failures import how_it_ended, name_ranks
from perseus.run.own_file import open_folder

__all__ = ["how_it_ended_alone", "remove_remains"]

# What is newer may belong to a job that just begins.
_LEAST_SECONDS = 60.0
# So long `--resume JOB` says why a job has failed that had no launcher.
_SECONDS_TO_KEEP = 7 * 86400.0


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


def how_it_ended_alone(job: int) -> str:
    """Returns what became of the ranks of a job that has failed without a launcher; "" if unknown.

    Of several jobs of this number, it is the last one.
    """
    found: list[dict[str, Any]] = []
    for place in folders():
        with contextlib.suppress(OSError):
            folder = open_folder(place)
            for name in os.listdir(folder):
                if name.startswith(f"{job}.") and name.endswith(job_folder.ENDED):
                    found.append(job_folder.read_json(folder, name) or {})
            os.close(folder)
    try:
        last = max(found, key=lambda each: each["ended"])
        ranks: dict[str, list[int]] = {}
        for report in last["reports"]:
            for rank in report["ranks"]:
                words = report["last_lines"].get(str(rank["number"]), "")
                how = f"{how_it_ended(rank['status'] or 0)[0]}{words and ': '}{words}"
                ranks.setdefault(how, []).append(rank["number"])
        return "; ".join(f"{name_ranks(sorted(each))} {how}" for how, each in ranks.items())
    except (ValueError, KeyError, TypeError, AttributeError):  # there is none, or another version's
        return ""


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
        elif name.endswith(job_folder.ENDED) and not _is_new(folder, name, _SECONDS_TO_KEEP):
            os.unlink(name, dir_fd=folder)


def _remove_dead_folder(path: str) -> None:
    """Removes the folder of a job that has neither a launcher nor an agent."""
    folder = job_folder.open_job_folder(path)
    try:
        lock = job_folder.take_lock(folder)
        if lock is None:
            return
        try:
            if not job_folder.may_be_taken_over(folder):
                job_folder.remove_ended_job(folder, path)
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def _is_new(folder: int, name: str, seconds: float = _LEAST_SECONDS) -> bool:
    changed = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
    return time.time() < changed + seconds
