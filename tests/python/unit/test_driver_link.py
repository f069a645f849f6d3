"""A process's end of the connection to its driver, beside a driver that the test plays."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from perseus.common.elastic import ObjectState, run_fn
from perseus.elastic import messages
from perseus.elastic.host_table import Change as Changed
from perseus.elastic.owner import NextWorld
from perseus_core import driver_link, driver_messages
from perseus_core.driver_link import Change, DriverLink, DriverLostError, RemovedError


class HandlerError(Exception):
    """Raised by a signal's handler."""


class Driver:
    """The other end of a link."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.settimeout(20)

    def is_told(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self._end.recv(4096))
        return said

    def has_heard_nothing(self) -> bool:
        self._end.setblocking(False)
        try:
            return not self._end.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self._end.settimeout(20)

    def says_world(self, meeting: int) -> None:
        self.says(messages.world_message(0, NextWorld(meeting, [0], 1, 0, 0), "here:1", {}))

    def announces(self, number: int) -> None:
        self.says(messages.change_message(number, Changed.ADDED, 1.5))

    def refuses(self) -> None:
        self.says(messages.refusal("the job has finished"))

    def ends(self) -> None:
        self._end.close()

    def says(self, message: bytes) -> None:
        self._end.send(message)


@pytest.fixture
def ends() -> Iterator[tuple[DriverLink, Driver]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        yield DriverLink(here), Driver(there)


def interrupted(link: DriverLink) -> None:
    """Has a signal's handler raise while a world is asked for."""

    def raises(number: int, frame: object) -> None:
        raise HandlerError

    before = signal.signal(signal.SIGALRM, raises)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(HandlerError):
            link.next_world()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("is_answered", ["before the next call", "after it"])
def test_a_world_is_asked_for_once_though_a_handler_has_raised(
    ends: tuple[DriverLink, Driver], is_answered: str
) -> None:
    link, driver = ends
    interrupted(link)
    assert driver.is_told()["says"] == "ready"
    late = threading.Timer(0.2, driver.says_world, [1])
    if is_answered == "after it":
        late.start()
    else:
        driver.says_world(1)
    assert link.next_world().meeting == 1
    assert driver.has_heard_nothing()
    late.cancel()


def test_a_refusal_that_came_while_nobody_waited_is_heard(ends: tuple[DriverLink, Driver]) -> None:
    link, driver = ends
    interrupted(link)
    driver.refuses()
    with pytest.raises(RemovedError, match="the job has finished"):
        link.next_world()


def test_the_end_of_the_driver_ends_each_wait(ends: tuple[DriverLink, Driver]) -> None:
    link, driver = ends
    threading.Timer(0.2, driver.ends).start()
    before = time.monotonic()
    for _ in range(2):
        with pytest.raises(DriverLostError, match="launcher has ended"):
            link.next_world()
    assert time.monotonic() - before < 10


WORLD: dict[str, Any] = {
    **{"says": "world", "worker": 0, "meeting": 1, "workers": [0], "started": 1, "change": 0},
    **{"rendezvous": "here:1", "environment": {}},
}


@pytest.mark.parametrize(
    "message",
    [
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b'{"says": "welcome"}',
        b'{"says": "refusal"}',
        b'{"says": "change", "number": "7", "change": 1, "moment": 0}',
        *(json.dumps({k: v for k, v in WORLD.items() if k != name}).encode() for name in WORLD),
        json.dumps({**WORLD, "workers": [1, 2]}).encode(),
        json.dumps({**WORLD, "workers": [0, "1"]}).encode(),
        json.dumps({**WORLD, "environment": {"MASTER_PORT": 29500}}).encode(),
    ],
)
def test_a_message_that_makes_no_sense_ends_each_wait_and_is_named(
    ends: tuple[DriverLink, Driver], message: bytes
) -> None:
    link, driver = ends
    threading.Timer(0.1, driver.says, [message]).start()
    quoted = repr(message[:200].decode(errors="replace"))
    for _ in range(2):
        with pytest.raises(DriverLostError) as raised:
            link.next_world()
        assert quoted in str(raised.value)
        assert "the same version of Perseus" in str(raised.value)


def test_each_message_of_the_driver_s_is_understood() -> None:
    world = NextWorld(meeting=3, workers=[4, 2], started=5, change=6, call=7)
    assert driver_messages.parse(
        messages.world_message(2, world, "host:1234", {"RANK": "1"})
    ) == driver_messages.World(2, 3, [4, 2], 5, 6, 7, "host:1234", {"RANK": "1"})
    assert driver_messages.parse(
        messages.change_message(7, Changed.MIXED, 1.5)
    ) == driver_messages.Change(7, 3, 1.5)
    assert driver_messages.parse(messages.refusal("no")) == driver_messages.Refusal("no")
    assert driver_messages.parse(messages.call_message(4)) == driver_messages.Call(4)
    assert driver_messages.parse(messages.question()) == driver_messages.Question()


def test_a_listener_that_raises_is_reported_and_the_driver_is_still_heard(
    ends: tuple[DriverLink, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, driver = ends
    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    heard: list[int] = []

    def fails(change: Change) -> None:
        raise HandlerError(change.number)

    link.add_listener(fails)
    link.add_listener(lambda change: heard.append(change.number))

    def answers() -> None:
        assert driver.is_told()["says"] == "ready"
        driver.announces(1)
        driver.announces(2)
        driver.says_world(1)

    driver_thread = threading.Thread(target=answers)
    driver_thread.start()
    assert link.next_world().meeting == 1
    driver_thread.join()
    assert heard == [1, 2]
    assert [error.args for error in reported if isinstance(error, HandlerError)] == [(1,), (2,)]


def test_a_training_loop_ends_once_the_driver_is_not_understood(
    ends: tuple[DriverLink, Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, driver = ends
    monkeypatch.setattr(driver_link, "_link", link)
    monkeypatch.setattr(driver_link, "is_elastic", lambda: True)
    driver.says(b"?")
    calls: list[str] = []

    def train(state: ObjectState) -> None:
        raise AssertionError("there is no world to train in")

    class State(ObjectState):
        def needs_sync(self) -> bool:
            calls.append("meets")
            link.next_world()
            return False

    state = State(lambda value: value, lambda: 0)
    with pytest.raises(DriverLostError, match=r"makes no sense to this process: '\?'"):
        run_fn(train, lambda: None)(state)
    assert calls == ["meets"]


def test_one_call_of_a_training_function_ends_before_the_next(
    ends: tuple[DriverLink, Driver],
) -> None:
    link, _ = ends
    with link.calling():
        with pytest.raises(RuntimeError, match="was called before another one"), link.calling():
            pass
        assert (link.call, link.is_behind) == (1, False)
    with link.calling():
        assert link.call == 2


def test_a_process_that_joins_in_a_later_call_is_behind(ends: tuple[DriverLink, Driver]) -> None:
    link, driver = ends

    def answers() -> None:
        assert driver.is_told()["says"] == "ready"
        driver.says(messages.call_message(2))
        driver.says(messages.world_message(0, NextWorld(1, [0], 1, 0, 3), "here:1", {}))

    driver_thread = threading.Thread(target=answers)
    driver_thread.start()
    link.next_world()
    driver_thread.join()
    for is_behind in (True, True, False):
        with link.calling():
            assert link.is_behind == is_behind
    assert link.has_skipped
