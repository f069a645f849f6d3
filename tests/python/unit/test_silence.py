"""Tests which agents the launcher gives up because they are silent, and which it does not."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from perseus.run import agent_protocol as protocol
from perseus.run.host_connection import AgentConnection
from perseus.run.message_tags import Session
from perseus.run.silence import ASK_SECONDS, SILENCE_SECONDS, SilenceWatch


class WatchedAgent:
    """A connection that is watched, and its other end."""

    def __init__(self) -> None:
        ours, self.end = socket.socketpair()
        self._session = Session(b"secret", b"said", b"agent", b"launcher")
        with ours:
            stdin, stdout = ours.makefile("wb", 0), ours.makefile("rb", 0)
        session = Session(b"secret", b"said", b"launcher", b"agent")
        self.connection = AgentConnection("h1", [0], stdin, stdout, {}, b"", session)
        self.connection.flush()
        self._send(protocol.MAGIC)
        self.watch = SilenceWatch()
        self.watch.add(self.connection)
        self.now = time.monotonic()

    def say(self, kind: int) -> None:
        self._send(protocol.HEADER.pack(kind, 0, 0))

    def _send(self, data: bytes) -> None:
        self.end.send(self._session.sealer.seal(data))
        list(self.connection.read())

    def heard(self) -> bytes:
        """Returns what the launcher has said since the last time."""
        return b"".join(self._session.opener.open(self.end.recv(1 << 20)))

    def after(self, seconds: float) -> list[AgentConnection]:
        """Lets the time pass, in which the launcher looks after its agents."""
        silent: list[AgentConnection] = []
        end = self.now + seconds
        while not silent and self.watch.next_deadline <= end:
            silent = self.watch.find_silent(self.watch.next_deadline)
        self.now = end
        return silent

    def close(self) -> None:
        self.connection.close(0)
        self.end.close()


@pytest.fixture
def agent() -> Iterator[WatchedAgent]:
    agent = WatchedAgent()
    yield agent
    agent.close()


def test_an_agent_is_asked_and_its_answer_counts(agent: WatchedAgent) -> None:
    agent.heard()  # the job
    for _ in range(30):
        assert agent.after(ASK_SECONDS + 1) == []
        assert set(agent.heard()) == set(protocol.ASK)
        agent.say(protocol.HERE)
    assert not agent.connection.ended


def test_an_agent_that_does_not_answer_is_silent(agent: WatchedAgent) -> None:
    agent.say(protocol.HERE)
    assert agent.after(SILENCE_SECONDS - 1) == []
    assert agent.after(2 * ASK_SECONDS + 2) == [agent.connection]


def test_words_of_somebody_else_are_no_answer(agent: WatchedAgent) -> None:
    agent.end.send(b"x" * 100)
    list(agent.connection.read())
    assert agent.connection.ended
    assert agent.connection.given_up_because.startswith("what its agent said arrived otherwise")


def test_an_agent_that_takes_what_it_is_sent_is_not_silent(agent: WatchedAgent) -> None:
    while agent.connection.waiting_bytes == 0:
        agent.connection.feed(bytes(100_000))
    for _ in range(30):
        agent.connection.feed(bytes(100_000))
        assert agent.after(ASK_SECONDS) == []


def test_an_agent_that_takes_nothing_is_silent(agent: WatchedAgent) -> None:
    while agent.connection.waiting_bytes == 0:
        agent.connection.feed(bytes(100_000))
    assert agent.after(SILENCE_SECONDS + 2 * ASK_SECONDS) == [agent.connection]


def test_a_launcher_that_was_stopped_gives_its_agents_time(agent: WatchedAgent) -> None:
    assert agent.watch.find_silent(agent.now + 10_000) == []
    assert agent.watch.find_silent(agent.now + 10_000 + ASK_SECONDS) == []
