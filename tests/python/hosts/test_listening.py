"""The rendezvous listens where the ranks come by, and on no other interface."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import pytest
from netlab import Hosts, lines

# A host's tables hold its own sockets alone. 0A: it listens.
SAYS_WHAT_LISTENS = """
import perseus_core
perseus_core.init()
if perseus_core.rank() == 0:
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{table}").readlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A":
                print("listens", address.split(":")[0])
perseus_core.barrier()
perseus_core.shutdown()
print("met")
"""


def listening(said: list[str]) -> set[str]:
    """Returns IPv4 addresses; other addresses stay hexadecimal."""
    found = {line.split()[1] for line in said if line.startswith("listens ")}
    return {
        socket.inet_ntoa(bytes.fromhex(word)[::-1]) if len(word) == 8 else word for word in found
    }


@pytest.mark.parametrize("places", ["0:2,1:1", "0:1,1:1,2:1"])
def test_that_of_perseusrun_is_on_the_named_interface(hosts: Hosts, places: str) -> None:
    options = ("--network-interfaces", "eth0")
    result = hosts.run_script(places, SAYS_WHAT_LISTENS, options=options)
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout).count("met") == 3
    assert listening(lines(result.stdout)) == {"10.86.0.1"}


def test_that_of_perseusrun_is_on_the_one_address_that_all_reach(hosts: Hosts) -> None:
    result = hosts.run_script("0:2,1:1", SAYS_WHAT_LISTENS)
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout).count("met") == 3
    found = listening(lines(result.stdout))
    assert "10.86.0.1" in found
    assert "0.0.0.0" not in found
    assert "0" * 32 not in found


def as_torchrun(hosts: Hosts, settings: Mapping[str, str]) -> list[str]:
    """Returns the output of two ranks on host 0 and one on host 1, started with torchrun's
    variables."""
    secret = {"PERSEUS_SECRET": "5ec4e7" * 8}
    common = {"WORLD_SIZE": "3", "MASTER_PORT": "29400", **secret, **settings}
    said = hosts.ranks_without_launcher(
        [0, 0, 1], SAYS_WHAT_LISTENS, variables_of=lambda rank: {**common, "RANK": str(rank)}
    )
    return "".join(said).splitlines()


@pytest.mark.parametrize("by_name", [False, True], ids=["by address", "by name"])
def test_that_of_rank_0_is_on_the_named_interface(hosts: Hosts, by_name: bool) -> None:
    name = f"{os.environ.get('NETLAB', 'perseus')}0"
    settings = {"PERSEUS_INTERFACES": "eth0", "MASTER_ADDR": name if by_name else "10.86.0.1"}
    said = as_torchrun(hosts, settings)
    assert said.count("met") == 3
    assert listening(said) == {"10.86.0.1"}


def test_that_of_rank_0_is_on_the_address_that_all_are_told(hosts: Hosts) -> None:
    found = listening(as_torchrun(hosts, {"MASTER_ADDR": "10.86.0.1"}))
    assert "10.86.0.1" in found
    assert "0.0.0.0" not in found
    assert "0" * 32 not in found
