"""Has the ranks of an elastic job outlive a launcher that is killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from perseus.elastic.agent_call import EndCall
from perseus.elastic.job_record import JobRecord
from perseus.run.host_connection import AgentConnection
from perseus.run.remote_shell import RemoteShell

__all__ = ["Outliving"]

# When the job ends, agents whose connections were lost have so long to hear of it.
_SECONDS_FOR_END_CALLS = 3.0


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
        self._end_calls: list[EndCall] = []

    @property
    def name(self) -> str:
        """Returns the name of the record's folder, without its ending; "" without a record."""
        return self._record.name if self._record else ""

    def new_agent(self, host: str, ranks: Sequence[int]) -> Mapping[str, Any] | None:
        """Notes an agent that is about to be started; returns what it needs to outlive us.

        Call `save` before it is started.
        """
        return self._record.add_agent(host, ranks) if self._record else None

    def save(self, driver: Callable[[], Mapping[str, Any]], running: Collection[int]) -> None:
        """Writes down the state of the driver, and which ranks run."""
        if self._record is None:
            return
        try:
            self._record.save(driver(), running)
        except OSError as error:
            why = error.strerror or error
            self._say(f"nobody can take this job over any more: {why}")

    def lost(self, host: AgentConnection) -> None:
        """Has an agent end with which only the connection was lost, if that is what happened."""
        for agent in self._record.agents if self._record else ():
            if self._record and not agent.is_here and agent.ranks == list(host.ranks):
                with contextlib.suppress(OSError, ValueError):
                    call = EndCall(self._record, agent, self._remote_shell, self._start_timeout)
                    self._end_calls.append(call)

    def close(self) -> None:
        """Removes the record, once the job has ended."""
        deadline = time.monotonic() + _SECONDS_FOR_END_CALLS
        for call in self._end_calls:
            call.fault(deadline)
            call.close()
        if self._record:
            self._record.close()
