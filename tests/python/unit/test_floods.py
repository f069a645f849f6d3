"""Tests that ranks meet, connect and work while strangers flood their ports with connections."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from free_ports import find_free_ports

from perseus.run import agent
from perseus.run.call_back import CALL_BACK

#: Opens as many connections as it can, and keeps the last 2,000 open, without a word.
FLOODER = """
import collections, resource, socket, struct, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
ports = [int(port) for port in sys.argv[1:]]
held = collections.deque()
for turn in range(10**9):
    one = socket.socket()
    one.setblocking(False)
    # Reset at the end, so that ports are free again at once.
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.connect_ex(("127.0.0.1", ports[turn % len(ports)]))
    held.append(one)
    if len(held) > min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100):
        held.popleft().close()
    if turn == 2000: print("flooding", flush=True)
"""
RANK = """
import resource, sys, numpy
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import perseus_core as core
print("ready", flush=True)
sys.stdin.readline()
for _ in range(5):
    core.init()
    core.shutdown()
core.init()
print("met", flush=True)
sys.stdin.readline()
for _ in range(3):
    total = core.allreduce(numpy.ones(50_000), core.ReduceOp.SUM, name="g")
    assert (total == core.size()).all()
print("connected", flush=True)
core.barrier()
"""


@contextmanager
def flood(ports: Sequence[int]) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(2):
            command = [sys.executable, "-c", FLOODER, *map(str, ports)]
            flooder = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(flooder.kill)
            assert flooder.stdout
            assert flooder.stdout.readline() == b"flooding\n"
        yield


class Ranks:
    """Ranks that torchrun's variables describe, and that wait before they meet and connect."""

    def __init__(self, count: int, port: int) -> None:
        variables = {
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "PERSEUS_MASTER_PORT": str(port),
            "PERSEUS_SECRET": "ab" * 32,
            "PERSEUS_TRANSPORT": "tcp",
        }
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                env={**os.environ, **variables, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(count)
        ]

    def go(self, rank: int) -> None:
        stdin = self._ranks[rank].stdin
        assert stdin
        stdin.write("\n")
        stdin.flush()

    def expect(self, word: str) -> None:
        for rank in self._ranks:
            assert rank.stdout
            said = ""
            for line in rank.stdout:
                said += line
                if line == f"{word}\n":
                    break
            else:
                pytest.fail(f"a rank has not {word}: {said}")

    def ports(self) -> list[int]:
        """Returns the TCP ports at which the ranks listen."""
        inodes = set()
        for rank in self._ranks:
            for link in Path(f"/proc/{rank.pid}/fd").iterdir():
                inodes |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        words = [line.split() for line in lines]
        return [int(one[1][-4:], 16) for one in words if one[3] == "0A" and one[9] in inodes]

    def end(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.communicate()


@pytest.fixture
def port() -> int:
    return find_free_ports(1)[0]


def test_a_rank_that_comes_in_a_flood_meets_the_others(port: int) -> None:
    ranks = Ranks(2, port)
    try:
        ranks.expect("ready")
        ranks.go(0)  # which serves the rendezvous
        while not ranks.ports():
            pass
        with flood([port]):
            ranks.go(1)
            ranks.expect("met")
    finally:
        ranks.end()


def test_ranks_connect_and_work_in_a_flood(port: int) -> None:
    ranks = Ranks(2, port)
    try:
        ranks.expect("ready")
        for rank in range(2):
            ranks.go(rank)
        ranks.expect("met")
        with flood(ranks.ports()):
            for rank in range(2):
                ranks.go(rank)
            ranks.expect("connected")
    finally:
        ranks.end()


#: The launcher's side of `perseusrun --mpi`, until the agent of rank 1 has come in.
LAUNCHER = """
import selectors, sys, time
from perseus.run.acceptor import Acceptor
selector, entered = selectors.DefaultSelector(), []
acceptor = Acceptor(selector, "127.0.0.1", sys.argv[1], [1], lambda rank, _: entered.append(rank))
print(acceptor.port, flush=True)
end = time.monotonic() + 40
while not entered and time.monotonic() < end:
    for key, _ in selector.select(0.1): key.data()
print("entered", entered, flush=True)
"""


def test_an_agent_calls_the_launcher_back_in_a_flood() -> None:
    key = "ab" * 32
    with ExitStack() as stack:
        launcher = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", LAUNCHER, key], stdout=subprocess.PIPE)
        )
        stack.callback(launcher.kill)
        assert launcher.stdout
        port = int(launcher.stdout.readline())
        stack.enter_context(flood([port]))
        called = {CALL_BACK: f"127.0.0.1 {port} {key}", "PMI_RANK": "1"}
        caller = subprocess.Popen(
            [sys.executable, agent.__file__, "--call-back"],
            env={**os.environ, **called},
            stderr=subprocess.PIPE,
        )
        stack.callback(caller.communicate)
        stack.callback(caller.kill)
        assert launcher.stdout.readline() == b"entered [1]\n", caller.communicate()[1]
