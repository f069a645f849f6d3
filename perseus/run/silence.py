"""Notices agents that are silent although their connections stand."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from perseus.run.host_connection import AgentConnection

#: An agent that says nothing for so long is given up. It does little that takes a second.
SILENCE_SECONDS = 120.0
#: How often an agent is asked, at least. If something has been left out of what was said, this
#: shows it.
ASK_SECONDS = 10.0
# An agent is asked so often, at least, before it is given up.
_LEAST_TIMES = 3
#: A launcher that comes so late to ask has been stopped, and its agents perhaps, too.
_STOPPED_SECONDS = 5.0


@dataclass
class _Asked:
    host: AgentConnection
    heard_at: float = field(default_factory=time.monotonic)
    received: int = 0  # records, when we last looked
    waiting: int = 0  # bytes that were waiting to be sent, when we last looked


class SilenceWatch:
    """Asks agents whether they are there. Never blocks; the owner calls `find_silent`.

    TCP notices a host that has vanished, but late if nothing is sent to it, and not a program in
    between that answers in its place.

    Args:
      seconds: an agent that says nothing for so long is silent.
    """

    def __init__(self, seconds: float = SILENCE_SECONDS) -> None:
        self.seconds = seconds
        self._ask_seconds = min(ASK_SECONDS, seconds / _LEAST_TIMES)
        self._agents: list[_Asked] = []
        self.next_deadline = float("inf")  # when `find_silent` must be called again

    def add(self, host: AgentConnection) -> None:
        self._agents.append(_Asked(host))
        self.next_deadline = min(self.next_deadline, time.monotonic() + self._ask_seconds)

    def find_silent(self, now: float) -> list[AgentConnection]:
        """Asks all agents, if it is time to; returns those that have not spoken for too long."""
        if now < self.next_deadline:
            return []
        was_stopped = now >= self.next_deadline + _STOPPED_SECONDS
        self.next_deadline = now + self._ask_seconds
        silent = []
        for agent in self._agents:
            host = agent.host
            if host.ended:
                continue
            seen = (host.received, host.waiting_bytes)
            if was_stopped or seen != (agent.received, agent.waiting):
                agent.received, agent.waiting = seen
                agent.heard_at = now
            if now >= agent.heard_at + self.seconds:
                silent.append(host)
            elif not host.waiting_bytes:
                host.ask()
        return silent
