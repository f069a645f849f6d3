"""The record of a job, which a launcher keeps for another one, in case it is killed.

perseus.run.job_folder has the folder, the lock, and how agents use them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perseus.elastic.drain_socket import folders
from perseus.elastic.options import ElasticOptions
from perseus.run import job_folder
from perseus.run.hosts import Host, is_local
from perseus.run.own_file import open_folder
from perseus.run.own_streams import tell
from perseus.run.start import Request

__all__ = ["FOLDER", "Agent", "JobRecord", "SavedJob", "read_record"]

#: The names of jobs' folders. The number is the process id of the job's first launcher.
FOLDER = re.compile(r"(?P<job>\d+)\.[0-9a-f]{8}\.job")
# The files have this number. Another version of perseusrun may write other ones.
_FORMAT = 3
_LOCK_BYTES = 20  # more than a number of a process has


@dataclass(frozen=True)
class Agent:
    """An agent that may outlive its launcher."""

    name: str  # of its socket, without the ending
    host: str
    ranks: Sequence[int]  # that it has started
    is_here: bool  # on the launcher's machine


@dataclass(frozen=True)
class SavedJob:
    """All that stays the same as long as a job lasts."""

    job: int
    began: float  # seconds of the Unix epoch
    secret: str
    request: Request
    options: ElasticOptions
    directory: str = field(default_factory=os.getcwd)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def encoded(self) -> str:
        request = {**asdict(self.request), "stdin": ""}
        drain_signal = self.options.drain_signal
        options = {**asdict(self.options), "drain_signal": drain_signal and drain_signal.name}
        return json.dumps({**vars(self), "request": request, "options": options})

    @classmethod
    def decoded(cls, saved: Mapping[str, Any]) -> SavedJob:
        request, options = dict(saved["request"]), dict(saved["options"])
        request["hosts"] = [Host(**host) for host in request["hosts"]]
        # The first launcher's stdin is not here any more.
        request |= {"stdin": b"", "forwards_stdin": False}
        if options["drain_signal"]:
            options["drain_signal"] = signal.Signals[options["drain_signal"]]
        if options["cooldown_range"]:
            options["cooldown_range"] = tuple(options["cooldown_range"])
        return cls(**{**saved, "request": Request(**request), "options": ElasticOptions(**options)})


class JobRecord:
    """A job's folder, of which this process holds the lock.

    Args:
      folder, lock: open descriptors, which are closed here.
    """

    def __init__(self, folder: int, path: str, lock: int, saved: SavedJob) -> None:
        self._folder = folder
        self._path = path
        self._lock = lock
        self._saved = saved
        self._encoded = saved.encoded()
        self.agents: list[Agent] = []
        # The same length each time: who takes a job over may find no room for more.
        os.pwrite(lock, str(os.getpid()).ljust(_LOCK_BYTES).encode(), 0)

    @classmethod
    def make(cls, secret: str, request: Request, options: ElasticOptions) -> JobRecord:
        """Makes the folder of a new job, and tells the user if that is not where it should be.

        Raises OSError, which says why no folder can be used.
        """
        saved = SavedJob(os.getpid(), time.time(), secret, request, options)
        faults = []
        for place in folders():
            try:
                record = cls._make_in(place, saved)
            except OSError as error:
                faults.append(f"{place}: {error.strerror or error}")
                continue
            if faults and not request.quiet:
                tell(f"this job's record is kept in {place}: not in {'; '.join(faults)}")
            return record
        raise OSError("; ".join(faults))

    @classmethod
    def _make_in(cls, place: Path, saved: SavedJob) -> JobRecord:
        parent = open_folder(place, makes=True)
        try:
            os.fchmod(parent, 0o700)
            # Processes of several containers may have one number, and share a folder.
            name = f"{saved.job}.{secrets.token_hex(4)}{job_folder.FOLDER}"
            os.mkdir(name, 0o700, dir_fd=parent)
        finally:
            os.close(parent)
        path = str(place / name)
        folder = job_folder.open_job_folder(path)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(job_folder.LOCK, flags, 0o600, dir_fd=folder))
            lock = job_folder.take_lock(folder)
            assert lock is not None  # nobody else knows of the folder
            try:
                return cls(folder, path, lock, saved)
            except OSError:
                os.close(lock)
                raise
        except OSError:
            job_folder.remove_job_folder(folder, path)
            os.close(folder)
            raise

    @property
    def job(self) -> int:
        """Returns the number that names the job."""
        return self._saved.job

    @property
    def path(self) -> str:
        """Returns the folder's path."""
        return self._path

    def add_agent(
        self, host: str, ranks: Sequence[int], files: tuple[str, int] | None
    ) -> dict[str, Any]:
        """Notes an agent that is about to be started; returns what that has to know."""
        name = secrets.token_hex(4)
        agent = Agent(name, host, list(ranks), is_local(host))
        self.agents.append(agent)
        wait = self._saved.options.timeout
        of_place = {"limit": None, "files": files} if agent.is_here else {"limit": wait}
        return {**self._place_of(agent), "wait": wait, **of_place}

    def call_to(self, agent: Agent, says: str = "take over") -> dict[str, Any]:
        """Returns what to tell the program that calls an agent (without_launcher.hand_over)."""
        return {**self._place_of(agent), "says": says}

    def _place_of(self, agent: Agent) -> dict[str, Any]:
        name = os.path.basename(self._path).removesuffix(job_folder.FOLDER)
        folder = self._path if agent.is_here else name + job_folder.AGENTS
        return {"folder": folder, "name": agent.name, "secret": self._saved.secret}

    def report_of(self, agent: Agent) -> dict[str, Any] | None:
        """Returns what an agent has left that ended while there was no launcher."""
        return job_folder.read_json(self._folder, agent.name + job_folder.REPORT)

    def save(self, driver: Mapping[str, Any], running: Collection[int]) -> None:
        """Writes down what the driver has to know, and which agents have ranks that run.

        Raises OSError. Then there is no record, so that nobody goes by an old one. It may succeed
        later.
        """
        self.agents = [a for a in self.agents if not set(running).isdisjoint(a.ranks)]
        rest = {
            "format": _FORMAT,
            "has_others": not all(agent.is_here for agent in self.agents),
            "driver": driver,
            "agents": [vars(agent) for agent in self.agents],
        }
        text = f'{json.dumps(rest)[:-1]}, "job": {self._encoded}}}'
        try:
            job_folder.write_whole(self._folder, job_folder.STATE, text)
        except OSError:
            self.spoil()  # which also leaves its room to the new one, on a full disk
            job_folder.write_whole(self._folder, job_folder.STATE, text)

    def spoil(self) -> None:
        """Removes the record, so that nobody can take the job over."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(job_folder.STATE, dir_fd=self._folder)

    def close(self) -> None:
        """Removes the folder, unless an agent has not ended; then `--end` can still reach it."""
        with contextlib.suppress(OSError):
            if not job_folder.living_agents(self._folder):
                self.remove()
        self.leave()

    def remove(self) -> None:
        """Removes the folder, and the socket of a launcher that was killed."""
        job_folder.remove_job_folder(self._folder, self._path)

    def leave(self) -> None:
        """Lets go of the job, which goes on without a launcher, or has no folder any more."""
        os.close(self._lock)
        os.close(self._folder)


def read_record(folder: int) -> tuple[SavedJob, dict[str, Any], list[Agent]]:
    """Returns what stays the same, what the driver has to know, and the agents.

    Raises ValueError if there is no record, or it is another version's.
    """
    found = job_folder.read_json(folder, job_folder.STATE)
    if found is None:
        raise ValueError("the record that its perseusrun kept is not there")
    try:
        if found["format"] != _FORMAT:
            raise ValueError("another version of perseusrun has started it")
        agents = [Agent(**agent) for agent in found["agents"]]
        return SavedJob.decoded(found["job"]), found["driver"], agents
    except (KeyError, TypeError):
        raise ValueError("the record that its perseusrun kept makes no sense") from None
