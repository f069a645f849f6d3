"""A job that a launcher is to run, and what it tells the agent of each host."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perseus.run.ending import DEFAULT_GRACE_SECONDS
from perseus.run.environment import (
    DEFAULT_START_TIMEOUT,
    exported,
    job_environment,
    rank_environment,
)
from perseus.run.host_connection import JobDescription
from perseus.run.hosts import Slot, is_local
from perseus.run.remote_shell import RemoteShell
from perseus.run.rendezvous import ServedRendezvous


@dataclass
class Job:
    """Describes the job that a launcher runs."""

    command: Sequence[str]
    slots: Sequence[Slot]
    secret: str
    rendezvous: ServedRendezvous | None = None  # None if the ranks meet without the launcher
    # Maps a host to the variables that tell its ranks where rank 0 is, for torch.distributed.
    master: Callable[[str], Mapping[str, str]] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # settings for all ranks
    directory: str = field(default_factory=os.getcwd)  # in which the ranks begin
    remote_shell: RemoteShell = field(default_factory=RemoteShell)
    start_timeout: int = DEFAULT_START_TIMEOUT
    stdin: bytes = b""  # the input of every rank
    stdin_fd: int | None = None  # what rank 0 reads, in place of that
    grace: float = DEFAULT_GRACE_SECONDS  # from SIGTERM to SIGKILL
    verbose: bool = False
    quiet: bool = False  # whether the launcher only speaks of failures

    def description_for(self, host: str, slots: Sequence[Slot]) -> JobDescription:
        """Returns what the agent of a host that ssh reaches is told."""
        environment = dict(os.environ) if is_local(host) else exported(os.environ)
        environment |= self.environment
        environment |= job_environment(self.secret)
        if self.rendezvous:
            environment["PERSEUS_RENDEZVOUS"] = self.rendezvous.seen_from(host)
        if self.master:
            environment |= self.master(host)
        return {
            "command": list(self.command),
            "directory": self.directory,
            "environment": environment,
            "forwards_stdin": self.stdin_fd is not None,
            "grace": self.grace,
            "local_size": len(slots),
            "shares_processors": True,
            "ranks": [{"rank": slot.rank, "environment": rank_environment(slot)} for slot in slots],
        }
