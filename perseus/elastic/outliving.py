"""Has the ranks of an elastic job outlive a launcher that is killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perseus.elastic.agent_call import EndCall
from perseus.elastic.job_record import Agent, JobRecord
from perseus.run.ending import NEVER
from perseus.run.host_connection import AgentConnection
from perseus.run.remote_shell import RemoteShell

__all__ = ["Outliving"]

# When the job ends, agents whose connections were lost have so long to hear of it.
_SECONDS_FOR_END_CALLS = 3.0
# A disk that is full may have room later.
_SECONDS_UNTIL_SAVED_AGAIN = 10.0


@dataclass
class _Lost:
    """An agent whose connection was lost. It may run."""

    agent: Agent
    call: EndCall | None = None  # that tells it to end


class Outliving:
    """Does nothing without a record: then the ranks end with the launcher.

    Args:
      record: is kept up to date for another launcher.
      start_timeout: the seconds in which another host must be reached.
      say: tells the user.
    """

    def __init__(
        self,
        record: JobRecord | None,
        remote_shell: RemoteShell,
        start_timeout: int,
        say: Callable[[str], None],
    ) -> None:
        self._record = record
        self._remote_shell = remote_shell
        self._start_timeout = start_timeout
        self._say = say
        self._lost: list[_Lost] = []
        self.save_again_at = NEVER  # by time.monotonic

    @property
    def path(self) -> str:
        """Returns the path of the record's folder; "" without a record."""
        return self._record.path if self._record else ""

    def new_agent(
        self, host: str, ranks: Sequence[int], files: tuple[str, int] | None = None
    ) -> Mapping[str, Any] | None:
        """Notes an agent that is about to be started; returns what it needs to outlive us.

        Call `save` before it is started. An agent that was lost there is to make room for it.

        Args:
          files: those of the ranks' output on this machine (Output.files).
        """
        for lost in self._lost:
            if lost.agent.host == host:
                self._tell_to_end(lost)
        return self._record.add_agent(host, ranks, files) if self._record else None

    def save(self, driver: Callable[[], Mapping[str, Any]], running: Collection[int]) -> None:
        """Writes down the state of the driver, and which ranks run.

        If that fails, it is to be called again at `save_again_at`.
        """
        if self._record is None:
            return
        had_failed = self.save_again_at != NEVER
        try:
            self._record.save(driver(), running)
        except OSError as error:
            self.save_again_at = time.monotonic() + _SECONDS_UNTIL_SAVED_AGAIN
            if not had_failed:
                self._say(
                    "nobody can take this job over while its record cannot be written: "
                    f"{error.strerror or error}"
                )
        else:
            self.save_again_at = NEVER
            if had_failed:
                self._say("this job can be taken over again")

    def lost(self, host: AgentConnection) -> None:
        """Has an agent end with which only the connection was lost, if that is what happened.

        It may be out of reach now, and is told again when the host is used again, and at the end.
        """
        for agent in self._record.agents if self._record else ():
            if not agent.is_here and agent.ranks == list(host.ranks):
                self._lost.append(_Lost(agent))
                self._tell_to_end(self._lost[-1])

    def close(self) -> None:
        """Removes the record, once the job has ended."""
        for lost in self._lost:
            self._tell_to_end(lost)
        deadline = time.monotonic() + _SECONDS_FOR_END_CALLS
        for lost in self._lost:
            if lost.call:
                lost.call.fault(deadline)
                lost.call.close()
        if self._record:
            self._record.close()

    def _tell_to_end(self, lost: _Lost) -> None:
        """Tells an agent to end, unless it is being told, or has ended."""
        if self._record and (lost.call is None or lost.call.has_failed()):
            with contextlib.suppress(OSError, ValueError):
                lost.call = EndCall(
                    self._record, lost.agent, self._remote_shell, self._start_timeout
                )
