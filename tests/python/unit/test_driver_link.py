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

from perseus_core.driver_link import DriverLink, RemovedError
from perseus_core.errors import AbortedError


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
        numbers = {"worker": 0, "meeting": meeting, "started": 1, "change": 0}
        self._say(says="world", workers=[0], rendezvous="here:1", environment={}, **numbers)

    def refuses(self) -> None:
        self._say(says="refusal", why="the job has finished")

    def ends(self) -> None:
        self._end.close()

    def _say(self, **said: Any) -> None:
        self._end.send(json.dumps(said).encode())


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
        with pytest.raises(AbortedError, match="launcher has ended"):
            link.next_world()
    assert time.monotonic() - before < 10
