"""The states of the launcher's acceptor: callers say right and wrong things, several at once.

A rank's agent enters only if a caller has proved to be that agent, on this very connection. An
agent that follows the protocol enters in the midst of it. Nothing stays behind.
"""

import contextlib
import os
import resource
import selectors
import socket
import sys
import time

import atheris
from machine_input import Input


class Clock:
    """Stands still until it is told to go on."""

    now = 1000.0


time.monotonic = lambda: Clock.now  # before others take it from there
with atheris.instrument_imports():
    from perseus.run import call_back
    from perseus.run.acceptor import Acceptor, CalledAgent

KEY, OTHER_KEY = "ab" * 32, "cd" * 32
ANSWER_BYTES = call_back.HELLO.size + call_back.PROOF_BYTES
RANKS = 3  # rank 0 follows the protocol
CALLERS = 4
MOST_STEPS = 48
MOST_FLOODING = 40
TIMES = (0.001, 0.1, 1.0, 5.0)
SECONDS_TO_ENTER = 20.0


class Caller:
    def __init__(self, port: int):
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setblocking(False)
        self.name, self.server = self.connection.getsockname(), ("127.0.0.1", port)
        self.challenge = b""
        self.said = b""
        self.heard = b""  # after the challenge

    def say(self, data: bytes) -> None:
        self.said += data
        with contextlib.suppress(OSError):
            self.connection.send(data)

    def read(self) -> None:
        with contextlib.suppress(OSError):
            self.heard += self.connection.recv(4096)
        missing = call_back.CHALLENGE_BYTES - len(self.challenge)
        self.challenge += self.heard[:missing]
        self.heard = self.heard[missing:]
        assert not self.heard or self.proven_rank() is not None, "a stranger was answered"

    def answer(self, rank: int, key: str = KEY, called: tuple[str, int] | None = None) -> bytes:
        called = called or self.server
        hello = call_back.HELLO.pack(
            rank, bytes(call_back.CHALLENGE_BYTES), call_back.pack_address(called), b"host"
        )
        return hello + call_back.proof(key, self.challenge, hello)

    def proven_rank(self) -> int | None:
        """Returns the rank that this has proved to be the agent of."""
        hello, proof = (
            self.said[: call_back.HELLO.size],
            self.said[call_back.HELLO.size : ANSWER_BYTES],
        )
        if len(self.challenge) < call_back.CHALLENGE_BYTES or len(hello) < call_back.HELLO.size:
            return None
        is_proven = proof == call_back.proof(KEY, self.challenge, hello)
        return int(call_back.HELLO.unpack(hello)[0]) if is_proven else None

    def said_address(self) -> bytes:
        return bytes(call_back.HELLO.unpack(self.said[: call_back.HELLO.size])[2])

    def verdict(self) -> bytes:
        answer = self.said[:ANSWER_BYTES]
        session = call_back.session(KEY, self.challenge, answer, call_back.AS_AGENT)
        return b"".join(session.opener.open(self.heard))

    def close(self, *, at_once: bool = True) -> None:
        if at_once:  # leaves no port in TIME_WAIT
            linger = (1).to_bytes(4, sys.byteorder) + bytes(4)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()


class House:
    """An acceptor, those who call it, and those who have entered."""

    def __init__(self, source: Input):
        self.source = source
        self.selector = selectors.DefaultSelector()
        self.awaited = set(range(RANKS))
        self.acceptor = Acceptor(self.selector, "127.0.0.1", KEY, self.awaited, self._enter)
        self.callers: dict[int, Caller] = {}
        self.past: list[Caller] = []
        self.flood: list[Caller] = []
        self.entered: list[socket.socket] = []

    def _enter(self, rank: int, called: CalledAgent) -> None:
        self.entered.append(called.connection)
        self.awaited.remove(rank)
        name = called.connection.getpeername()
        (caller,) = (c for c in (*self.callers.values(), *self.past) if c.name == name)
        caller.read()
        assert caller.proven_rank() == rank
        assert caller.said_address() == call_back.pack_address(("127.0.0.1", self.acceptor.port))

    def step(self) -> None:
        what, index = self.source.number() % 10, self.source.number() % CALLERS
        if what == 0:
            Clock.now += TIMES[index]
        elif what == 1:
            count = 8 * (1 + index)
            while count and len(self.flood) < MOST_FLOODING:
                self.flood.append(Caller(self.acceptor.port))
                count -= 1
        elif what == 2:
            self.drop(index)
        else:
            self._say(what, index)
        self.settle()

    def _say(self, what: int, index: int) -> None:
        if index not in self.callers:
            self.callers[index] = Caller(self.acceptor.port)
            self.settle()
        caller = self.callers[index]
        caller.read()
        how = self.source.number()
        rank, key = 1 + how % RANKS, OTHER_KEY if how >= 0xF0 else KEY  # one rank is unknown
        if what == 3:
            caller.say(self.source.bytes(how))
        elif what == 4:
            caller.say(caller.answer(rank)[:how])
        elif what == 5:
            caller.say(caller.answer(rank)[how:])
        elif what == 6:
            answer = bytearray(caller.answer(rank))
            answer[self.source.number() % len(answer)] ^= 1 << how % 8
            caller.say(bytes(answer))
        elif what == 7:
            caller.say(self.callers.get(how % CALLERS, caller).said[:ANSWER_BYTES])
        elif what == 8:
            with contextlib.suppress(OSError):
                caller.connection.shutdown(socket.SHUT_WR)
        else:
            elsewhere = ("127.0.0.1", 1) if 0xE0 <= how < 0xF0 else None
            caller.say(caller.answer(rank, key, elsewhere))

    def drop(self, index: int) -> None:
        if caller := self.callers.pop(index, None):
            self.past.append(caller)
            caller.close(at_once=bool(self.source.number() % 2))

    def settle(self) -> None:
        for _ in range(1000):
            self.acceptor.handle_deadlines(Clock.now)
            ready = self.selector.select(0)
            if not ready:
                return
            for key, _ in ready:
                key.data()
        raise AssertionError("the acceptor spins")

    def has_proper_agent_enter(self) -> None:
        end = Clock.now + SECONDS_TO_ENTER
        proper = self.callers[CALLERS] = Caller(self.acceptor.port)
        while len(proper.challenge) < call_back.CHALLENGE_BYTES:
            assert Clock.now < end
            Clock.now += 0.05
            self.settle()
            proper.read()
        proper.say(proper.answer(0))
        self.settle()
        assert 0 not in self.awaited
        proper.read()
        assert proper.verdict() == call_back.WELCOME

    def close(self) -> None:
        self.acceptor.close()
        for caller in (*self.callers.values(), *self.flood):
            caller.close()
        for connection in self.entered:
            connection.close()
        self.selector.close()


def one_input(data: bytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    house = House(Input(data))
    for _ in range(MOST_STEPS):
        if not house.source.rest:
            break
        house.step()
    house.has_proper_agent_enter()
    assert house.acceptor.next_deadline() > Clock.now
    house.close()
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left"


# The acceptor keeps an eighth of these.
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
atheris.Setup(sys.argv, one_input)
atheris.Fuzz()
