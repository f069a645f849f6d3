"""Tests which callers the launcher accepts as mpirun's agents, and how long it keeps others."""

from __future__ import annotations

import os
import resource
import select
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from perseus.run import call_back
from perseus.run.acceptor import Acceptor, CalledAgent

KEY = "ab" * 32


class House:
    """An acceptor for the agents of ranks 0 and 1, and its callers."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.entered: list[tuple[int, str]] = []
        self.awaited = {0, 1}
        self.acceptor = Acceptor(self.selector, "127.0.0.1", KEY, self.awaited, self._enter)
        self.sockets: list[socket.socket] = []

    def _enter(self, rank: int, called: CalledAgent) -> None:
        self.sockets.append(called.connection)
        self.awaited.remove(rank)
        self.entered.append((rank, called.host))

    def call(self) -> socket.socket:
        caller = socket.create_connection(("127.0.0.1", self.acceptor.port), timeout=10)
        self.sockets.append(caller)
        return caller

    def attend(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not until():
            assert time.monotonic() < deadline
            for key, _ in self.selector.select(0.01):
                key.data()

    def challenge(self, caller: socket.socket) -> bytes:
        self.attend(lambda: is_greeted(caller))
        return caller.recv(call_back.CHALLENGE_BYTES)

    def close(self) -> None:
        self.acceptor.close()
        self.selector.close()
        for one in self.sockets:
            one.close()


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


@contextmanager
def descriptors(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answer(
    caller: socket.socket,
    challenge: bytes,
    claimed: int = 0,
    proved: int = 0,
    key: str = KEY,
    called: tuple[str, int] | None = None,
) -> bytes:
    """Returns the answer of a caller that claims a rank; the proof may be for another, or wrong.

    `called`: the address that it says it has called, if that is not the acceptor's.
    """
    own = bytes(call_back.CHALLENGE_BYTES)
    address = call_back.pack_address(called or caller.getpeername())
    hello = call_back.HELLO.pack(proved, own, address, b"h1")
    proof = call_back.proof(key, challenge, hello)
    return call_back.HELLO.pack(claimed, own, address, b"h1") + proof


def verdict(caller: socket.socket, challenge: bytes, said: bytes) -> bytes:
    """Returns what the acceptor says, if it knows the key."""
    session = call_back.session(KEY, challenge, said, call_back.AS_AGENT)
    return b"".join(session.opener.open(caller.recv(4096)))


def is_greeted(caller: socket.socket) -> bool:
    return _has_come(caller, select.POLLIN)


def is_sent_away(caller: socket.socket) -> bool:
    return _has_come(caller, select.POLLRDHUP)


def _has_come(caller: socket.socket, event: int) -> bool:
    poll = select.poll()
    poll.register(caller, event)
    return bool(poll.poll(0))


def test_an_agent_enters_and_is_answered(house: House) -> None:
    caller = house.call()
    challenge = house.challenge(caller)
    said = answer(caller, challenge)
    for piece in (said[:10], said[10:]):
        caller.send(piece)
    house.attend(lambda: bool(house.entered))
    assert house.entered == [(0, "h1")]
    assert verdict(caller, challenge, said) == call_back.WELCOME
    house.acceptor.handle_deadlines(time.monotonic() + 100)
    assert not is_sent_away(caller)


@pytest.mark.parametrize(
    "say",
    [
        lambda caller, challenge: answer(caller, challenge, key="00" * 32),
        lambda caller, challenge: answer(caller, challenge, claimed=1),
        lambda caller, challenge: answer(caller, bytes(len(challenge))),
        lambda caller, challenge: answer(caller, challenge, claimed=2, proved=2),
    ],
    ids=["another key", "another rank", "another challenge", "a rank that nobody awaits"],
)
def test_who_proves_something_else_is_sent_away(
    house: House, say: Callable[[socket.socket, bytes], bytes]
) -> None:
    caller = house.call()
    caller.send(say(caller, house.challenge(caller)))
    house.attend(lambda: is_sent_away(caller))
    assert house.entered == []
    assert caller.recv(4096) == b""


@pytest.mark.parametrize(
    "called", [("127.0.0.2", None), ("127.0.0.1", 1)], ids=["another address", "another port"]
)
def test_an_agent_that_has_called_elsewhere_is_told_so(
    house: House, called: tuple[str, int | None]
) -> None:
    caller = house.call()
    challenge = house.challenge(caller)
    said = answer(caller, challenge, called=(called[0], called[1] or house.acceptor.port))
    caller.send(said)
    house.attend(lambda: is_sent_away(caller))
    assert house.entered == []
    assert verdict(caller, challenge, said) == call_back.NOT_CALLED_HERE


def test_a_rank_enters_once(house: House) -> None:
    first, second = house.call(), house.call()
    first.send(answer(first, house.challenge(first)))
    house.attend(lambda: bool(house.entered))
    second.send(answer(second, house.challenge(second)))
    house.attend(lambda: is_sent_away(second))
    assert house.entered == [(0, "h1")]
    assert not is_sent_away(first)


def test_who_says_nothing_is_sent_away_after_five_seconds(house: House) -> None:
    before = time.monotonic()
    caller = house.call()
    house.challenge(caller)
    assert before + 5 <= house.acceptor.next_deadline() <= time.monotonic() + 5
    house.acceptor.handle_deadlines(before + 4.9)
    assert not is_sent_away(caller)
    house.acceptor.handle_deadlines(house.acceptor.next_deadline())
    house.attend(lambda: is_sent_away(caller))
    assert house.acceptor.next_deadline() == float("inf")


def test_a_crowd_gets_an_eighth_of_the_descriptors() -> None:
    with descriptors(160):
        house = House()
    callers = [house.call() for _ in range(30)]
    house.attend(lambda: all(is_greeted(caller) for caller in callers))
    house.attend(lambda: sum(is_sent_away(caller) for caller in callers) == 10)
    assert len(house.selector.get_map()) == 1 + 20
    house.close()


def test_many_descriptors_make_the_crowd_no_larger_than_its_bound() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("there are too few descriptors here")
    with descriptors(4096):
        house = House()
        callers = [house.call() for _ in range(300)]
        house.attend(lambda: all(is_greeted(caller) for caller in callers))
        assert len(house.selector.get_map()) == 1 + 256
        house.close()


def test_an_agent_is_heard_before_the_whole_of_a_crowd_has_come_in() -> None:
    with descriptors(160):
        house = House()
    caller = house.call()
    caller.send(answer(caller, house.challenge(caller)))
    crowd = [house.call() for _ in range(100)]
    house.attend(lambda: bool(house.entered))
    assert not all(is_greeted(one) for one in crowd)
    house.close()


def test_without_descriptors_it_rests_and_then_goes_on(house: House) -> None:
    caller = house.call()
    free = os.dup(0)
    os.close(free)
    before = time.monotonic()
    with descriptors(free):
        house.attend(lambda: house.acceptor.next_deadline() < float("inf"))
        assert before + 0.1 <= house.acceptor.next_deadline() <= time.monotonic() + 0.1
        assert not house.selector.select(0)
    house.acceptor.handle_deadlines(house.acceptor.next_deadline())
    assert len(house.challenge(caller)) == call_back.CHALLENGE_BYTES


def test_a_caller_keeps_the_last_descriptor(house: House) -> None:
    caller = house.call()
    last = os.dup(0)
    os.close(last)
    with descriptors(last + 1):
        house.attend(lambda: is_greeted(caller))
        house.attend(lambda: not house.selector.select(0))
    assert not is_sent_away(caller)


def test_when_it_closes_those_who_are_left_are_sent_away(house: House) -> None:
    callers = [house.call() for _ in range(3)]
    house.attend(lambda: all(map(is_greeted, callers)))
    house.acceptor.close()
    house.attend(lambda: all(map(is_sent_away, callers)))
    assert not house.selector.get_map()
    with pytest.raises(ConnectionRefusedError):
        house.call()
