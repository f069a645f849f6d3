"""An agent whose launcher takes nothing of what its ranks write, as in a network that is cut."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perseus.run import agent_protocol as protocol
from perseus.run.host_connection import AGENT, HostConnection

# More than all pipes on the way to the launcher hold, and what the agent keeps.
_BYTES = 8 << 20
_WRITER = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "new").write_text(str(os.getpid()))
os.rename(Path(sys.argv[1], "new"), Path(sys.argv[1], "process"))
for _ in range(int(sys.argv[2]) >> 16):
    os.write(1, b"x" * (1 << 16))
"""
_WRITES_STDOUT = f"{1 if os.uname().machine == 'x86_64' else 64} 0x1 "


class Behind:
    """An agent with a rank that has written as much as goes, of which nothing is read."""

    def __init__(self, folder: Path, **more: object) -> None:
        job = {
            "command": [sys.executable, "-c", _WRITER, str(folder), str(_BYTES)],
            "directory": str(folder),
            "environment": {},
            "ranks": [{"rank": 0, "environment": {}}],
            "local_size": 1,
            "shares_processors": False,
            "forwards_stdin": False,
            "has_driver": True,
            "grace": 1.0,
            **more,
        }
        self.connection = HostConnection("localhost", [0], AGENT, job)
        self.connection.flush()
        self.agent = self.connection.group
        until((folder / "process").exists)
        self._rank = Path("/proc", (folder / "process").read_text())
        until(self._rank_waits)

    def _rank_waits(self) -> bool:
        return (self._rank / "syscall").read_text().startswith(_WRITES_STDOUT)

    def rank_is_gone(self) -> bool:
        return not self._rank.exists()

    def is_gone(self) -> bool:
        return self.connection._process.poll() is not None


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Callable[..., Behind]]:
    agents: list[Behind] = []

    def start(**more: object) -> Behind:
        agents.append(Behind(tmp_path, **more))
        return agents[-1]

    yield start
    for agent in agents:
        agent.connection.close(0)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_it_ends_its_ranks_when_it_is_told_to(behind: Callable[..., Behind]) -> None:
    one = behind()
    one.connection.terminate()
    until(one.rank_is_gone)
    until(one.is_gone)  # though nobody has read the last words


def test_it_notices_that_the_launcher_is_silent(behind: Callable[..., Behind]) -> None:
    one = behind(most_silence=0.5)
    until(one.rank_is_gone)
    until(one.is_gone)


def test_it_ends_with_its_launcher(behind: Callable[..., Behind]) -> None:
    one = behind()
    one.connection._stdin.close()
    until(one.rank_is_gone)
    until(one.is_gone)


def test_nothing_is_lost_when_the_launcher_reads_on(behind: Callable[..., Behind]) -> None:
    connection = behind().connection
    received = 0
    statuses: list[bytes] = []

    def reads_all() -> bool:
        nonlocal received
        for frame in connection.read():
            received += len(frame.payload) * (frame.kind == protocol.STDOUT)
            statuses.extend([frame.payload] if frame.kind == protocol.EXIT else [])
        return connection.ended

    until(reads_all)
    assert (received, statuses) == (_BYTES, [b"0"])


def test_it_answers_once_the_launcher_reads_on(behind: Callable[..., Behind]) -> None:
    connection = behind().connection
    connection.ask()
    kinds: set[int] = set()

    def is_answered() -> bool:
        kinds.update(frame.kind for frame in connection.read())
        return protocol.HERE in kinds

    until(is_answered)
