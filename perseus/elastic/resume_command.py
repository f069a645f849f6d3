"""Finds jobs of this user whose launchers were killed: `perseusrun --resume`, and `--end`."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from perseus.elastic.agent_call import EndCall
from perseus.elastic.dead_jobs import how_it_ended_alone, remove_remains
from perseus.elastic.drain_socket import folders
from perseus.elastic.job_record import FOLDER, Agent, JobRecord, SavedJob, read_record
from perseus.elastic.launcher import ElasticLauncher
from perseus.elastic.start import resume_elastic, take_environment
from perseus.run import job_folder, processes
from perseus.run.ending import AGENT_SECONDS
from perseus.run.environment import DEFAULT_START_TIMEOUT
from perseus.run.own_file import open_folder
from perseus.run.remote_shell import RemoteShell

__all__ = ["ResumeError", "end_job", "list_jobs", "resume_job"]

_LONGEST_COMMAND = 200  # letters of it that are told
# Whoever lists jobs has their locks for a moment.
_SECONDS_TO_LOCK = 0.5


class ResumeError(Exception):
    """The job cannot be taken over, or ended. The text is one line, for the user."""


@dataclass(frozen=True)
class _Found:
    """A job without a launcher. This process holds its lock."""

    job: int
    path: str
    folder: int
    lock: int

    def leave(self) -> None:
        os.close(self.lock)
        os.close(self.folder)

    def read(self) -> tuple[SavedJob, dict[str, Any], list[Agent]]:
        try:
            return read_record(self.folder)
        except ValueError as error:
            raise ResumeError(f"job {self.job} cannot be taken over: {error}") from None

    def take(self) -> tuple[SavedJob, dict[str, Any], list[Agent], JobRecord]:
        """Returns what `read` does, and the record, to which the descriptors belong then."""
        try:
            saved, driver, agents = self.read()
        except ResumeError:
            self.leave()
            raise
        return saved, driver, agents, JobRecord(self.folder, self.path, self.lock, saved)


def list_jobs() -> str:
    """Returns a line for each job of this user that goes on here without a launcher."""
    lines = []
    for found in _jobs(None):
        if isinstance(found, _Found):
            lines.append(_describe(found))
            found.leave()
    return "\n".join(lines) or "no elastic job of this user goes on here without its perseusrun"


def resume_job(job: int) -> tuple[ElasticLauncher, int]:
    """Runs a job to its end whose launcher was killed; returns its launcher, and its exit status.

    Raises ResumeError if there is no such job, or ValueError if it cannot be run from here.
    """
    saved, driver, agents, record = _only(job).take()
    return resume_elastic(saved, record, agents, driver)


def end_job(job: int) -> str:
    """Ends the ranks of a job whose launcher was killed; returns what was done.

    They get SIGTERM, and SIGKILL after the job's grace. Raises ResumeError if there is no such job,
    or an agent does not end.
    """
    saved, _, agents, record = _only(job).take()
    take_environment(saved)
    request = saved.request
    seconds = request.start_timeout or DEFAULT_START_TIMEOUT
    calls: list[EndCall] = []
    try:
        shell = RemoteShell.from_environment(request.ssh_port, request.ssh_identity_file)
        calls = [EndCall(record, agent, shell, seconds) for agent in agents]
        deadline = time.monotonic() + request.grace + 5 * AGENT_SECONDS
        if not all(agent.is_here for agent in agents):
            deadline += seconds
        faults = [
            f"host {agent.host}: {fault}"
            for agent, call in zip(agents, calls, strict=True)
            if (fault := call.fault(deadline))
        ]
        if faults:
            raise ResumeError(f"job {job}: " + "; ".join(faults))
        record.remove()
    finally:
        for call in calls:
            call.close()
        record.leave()
    return f"job {job} is ended"


def _only(job: int) -> _Found:
    """Returns the job of this number that has no launcher. Raises ResumeError if there is none."""
    jobs = list(_jobs(job))
    without = [found for found in jobs if isinstance(found, _Found)]
    launchers = [found for found in jobs if isinstance(found, int)]
    if len(without) == 1:
        return without[0]
    for found in without:
        found.leave()
    if without:
        raise ResumeError(f"{len(without)} jobs have the number {job}")
    if not launchers:
        if end := how_it_ended_alone(job):
            raise ResumeError(f"job {job} has ended without its perseusrun: {end}")
        raise ResumeError(
            f"no elastic job {job} of this user goes on here without its perseusrun; "
            "`perseusrun --resume` lists those that do"
        )
    raise ResumeError(_why_not(job, launchers[0]))


def _why_not(job: int, process: int) -> str:
    if processes.about(process)[:1] == [b"T"]:
        return (
            f"job {job} has its perseusrun, process {process}, which is stopped: continue it with "
            f"`kill -CONT {process}`, or kill it with `kill -KILL {process}` first"
        )
    return f"job {job} has its perseusrun, process {process}"


def _jobs(job: int | None) -> Iterator[_Found | int]:
    """Yields jobs of this number, or all: what is known of them, or who has the job.

    Folders in which no agent listens any more are removed, and what else dead jobs have left.
    """
    remove_remains()
    for place in folders():
        try:
            parent = open_folder(place)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ResumeError(str(error.strerror or error)) from None
        try:
            names = sorted(os.listdir(parent))
        finally:
            os.close(parent)
        for name in names:
            match = FOLDER.fullmatch(name)
            if match and job in (None, int(match["job"])):
                seconds = 0.0 if job is None else _SECONDS_TO_LOCK
                yield from _look_at(int(match["job"]), str(place / name), seconds)


def _look_at(job: int, path: str, seconds: float) -> Iterator[_Found | int]:
    folder = None
    try:
        folder = job_folder.open_job_folder(path)
        lock = job_folder.take_lock(folder, seconds)
        if lock is None:
            holder = os.open(job_folder.LOCK, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            with os.fdopen(holder) as file:
                process = int(file.read())
            os.close(folder)
            yield process
        elif job_folder.may_be_taken_over(folder):
            yield _Found(job, path, folder, lock)
        else:
            job_folder.remove_ended_job(folder, path)
            _Found(job, path, folder, lock).leave()
    except (OSError, ValueError):  # it has just ended, or just begun
        if folder is not None:
            os.close(folder)


def _describe(found: _Found) -> str:
    try:
        saved, _, agents = found.read()
    except ResumeError as error:
        return str(error)
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(saved.began))
    hosts = ", ".join(dict.fromkeys(agent.host for agent in agents))
    command = shlex.join(saved.request.command)[:_LONGEST_COMMAND]
    return f"job {found.job}, begun {began}, on {hosts}: {command}"
