"""A rank without file descriptors owns up; nobody else is taken for dead because of it."""

from __future__ import annotations

import os

import pytest
from conftest import RunRanks

# Rank 2 leaves only `spare` descriptors when it begins, and gives the rest back after `seconds`.
SHORT = """
import os, resource, threading, time, numpy, perseus_core
spare, seconds = int(os.environ["SPARE"]), float(os.environ["BACK_AFTER"])
numpy.random.default_rng(0)
if os.environ["PERSEUS_RANK"] == "2":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, most))
    back = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.Timer(seconds, back).start()
try:
    perseus_core.init()
    ranks = perseus_core.allgather(numpy.array([perseus_core.rank()]), name="all")
    print("found", ranks.tolist(), flush=True)
except perseus_core.HorovodInternalError as error:
    print("error:", error, flush=True)
    os._exit(1)
"""


def run(run_ranks: RunRanks, spare: int, seconds: float) -> list[str]:
    environment = {**os.environ, "PERSEUS_TRANSPORT": "tcp", "PERSEUS_PEER_TIMEOUT": "4"}
    environment |= {"SPARE": str(spare), "BACK_AFTER": str(seconds)}
    result = run_ranks(4, SHORT, environment=environment)
    return [line.partition(":")[2] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("spare", [6, 14])
def test_a_rank_without_descriptors_is_named_by_all(run_ranks: RunRanks, spare: int) -> None:
    lines = run(run_ranks, spare, seconds=60)
    assert len(lines) == 4, lines
    for line in lines:
        assert "error:" in line
        assert "rank 2 on " in line
        assert "can neither make nor take connections: Too many open files; raise its limit" in line


def test_a_shortage_that_passes_does_no_harm(run_ranks: RunRanks) -> None:
    assert run(run_ranks, spare=14, seconds=1) == ["found [0, 1, 2, 3]"] * 4
