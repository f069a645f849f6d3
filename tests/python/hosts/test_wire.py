"""PERSEUS_WIRE, where somebody sits on the wire between two hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from netlab import Hosts, lines
from wiretap import on_the_wire_of, whole_packets

MARK, OTHER = b"the weights of the model", b"THE WEIGHTS OF THE MODEL"

SCRIPT = f"""
import numpy, perseus_core as core
core.init()
mine = numpy.frombuffer({MARK!r} * 5000, numpy.uint8).copy()
if core.rank() != 0:
    mine[:] = 0
try:
    core.broadcast(mine, 0, name="weights", out=mine)
    print(bytes(mine[:{len(MARK)}]).decode())
except core.AbortedError as error:
    print(error)
"""


@pytest.fixture(scope="module", autouse=True)
def packets(lab: None) -> Iterator[None]:
    with whole_packets(4):
        yield


class Middle:
    """Looks for the mark in what passes; if `changes`, it puts the other one in its place."""

    def __init__(self, changes: bool):
        self._changes = changes
        self.has_seen = False

    def __call__(self, data: bytes) -> bytes:
        self.has_seen |= MARK in data
        return data.replace(MARK, OTHER) if self._changes else data


@pytest.mark.parametrize("wire", ["plain", "authenticated", "encrypted"])
def test_only_encryption_hides_what_goes_between_hosts(hosts: Hosts, wire: str) -> None:
    middle = Middle(changes=False)
    with on_the_wire_of(1, middle):
        result = hosts.run_script("0:1,1:1", SCRIPT, PERSEUS_WIRE=wire)
    assert middle.has_seen == (wire != "encrypted")
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout) == [MARK.decode()] * 2


def test_a_plain_wire_does_not_notice_that_data_is_changed(hosts: Hosts) -> None:
    middle = Middle(changes=True)
    with on_the_wire_of(1, middle):
        result = hosts.run_script("0:1,1:1", SCRIPT)
    assert middle.has_seen
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout) == sorted([MARK.decode(), OTHER.decode()])


def test_an_authenticated_wire_does(hosts: Hosts) -> None:
    middle = Middle(changes=True)
    with on_the_wire_of(1, middle):
        result = hosts.run_script("0:1,1:1", SCRIPT, PERSEUS_WIRE="authenticated")
    assert middle.has_seen
    assert OTHER.decode() not in result.stdout
    assert "what arrived is not what it sent: something between the hosts has changed it" in (
        result.stdout
    )
