"""PERSEUS_WIRE, where somebody sits on the wire between two hosts."""

from __future__ import annotations

import pytest
from middle import in_the_middle
from netlab import Hosts, lines

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


@pytest.mark.parametrize("wire", ["plain", "authenticated", "encrypted"])
def test_only_encryption_hides_what_goes_between_hosts(hosts: Hosts, wire: str) -> None:
    with in_the_middle() as middle:
        middle.spy(MARK)
        result = hosts.run_script("0:1,1:1", SCRIPT, PERSEUS_WIRE=wire)
        assert (middle.seen == 0) == (wire == "encrypted")
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout) == [MARK.decode()] * 2


def test_a_plain_wire_does_not_notice_that_data_is_changed(hosts: Hosts) -> None:
    with in_the_middle() as middle:
        middle.change(MARK, OTHER)
        result = hosts.run_script("0:1,1:1", SCRIPT)
        assert middle.changed
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout) == sorted([MARK.decode(), OTHER.decode()])


def test_an_authenticated_wire_does(hosts: Hosts) -> None:
    with in_the_middle() as middle:
        middle.change(MARK, OTHER)
        result = hosts.run_script("0:1,1:1", SCRIPT, PERSEUS_WIRE="authenticated")
        assert middle.changed
    assert OTHER.decode() not in result.stdout
    assert "what arrived is not what it sent: something between the hosts has changed it" in (
        result.stdout
    )
