"""Tests that a rank without file descriptors reports itself, and no other is taken for dead."""

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


def test_exhaustion_that_passes_does_no_harm(run_ranks: RunRanks) -> None:
    assert run(run_ranks, spare=14, seconds=1) == ["found [0, 1, 2, 3]"] * 4


# Rank 1 of 3 lacks the limited resource before init, or once it is initialised.
LIMITED = """
import os, resource, time, numpy, perseus_core
def limit():
    if os.environ["PERSEUS_RANK"] != "1":
        return
    what, room = os.environ["LIMIT"].split()
    if what == "descriptors":
        used, kind = len(os.listdir("/proc/self/fd")) - 1, resource.RLIMIT_NOFILE
    else:
        used = 4096 * int(open("/proc/self/statm").read().split()[0])
        kind = resource.RLIMIT_AS
    resource.setrlimit(kind, (used + int(room), resource.getrlimit(kind)[1]))
try:
    numpy.random.default_rng(0)
    if "before" in os.environ["WHEN"]:
        limit()
    perseus_core.init()
    limit()
    perseus_core.allgather(numpy.ones(20_000_000), name="large")
    print("done", flush=True)
except perseus_core.HorovodInternalError as error:
    print("error:", error, flush=True)
time.sleep(0.5)
os._exit(1)
"""


def run_limited(run_ranks: RunRanks, limit: str, when: str, transport: str = "auto") -> list[str]:
    environment = {**os.environ, "LIMIT": limit, "WHEN": when, "PERSEUS_START_TIMEOUT": "5"}
    environment["PERSEUS_TRANSPORT"] = transport
    result = run_ranks(3, LIMITED, environment=environment)
    assert "was killed by" not in result.stderr, result.stderr
    return [line.partition(":")[2] for line in result.stdout.splitlines()]


def test_a_rank_without_a_descriptor_for_its_engine_says_so(run_ranks: RunRanks) -> None:
    lines = run_limited(run_ranks, "descriptors 0", "before init")
    assert len(lines) == 3, lines
    assert all("error:" in line for line in lines), lines
    assert sum("descriptors" in line for line in lines) >= 1, lines
    assert sum("rank 1 on localhost" in line for line in lines) >= 2, lines


def test_a_rank_without_memory_for_a_thread_is_named_by_all(run_ranks: RunRanks) -> None:
    lines = run_limited(run_ranks, "memory 7000000", "before init", "tcp")
    assert len(lines) == 3, lines
    assert sum("rank 1 on localhost" in line for line in lines) == 2, lines
    # The other may not yet have had a link to hear it by.
    assert sum("cannot start a thread for the engine" in line for line in lines) >= 2, lines


def test_a_rank_without_memory_for_a_result_is_named_by_all(run_ranks: RunRanks) -> None:
    lines = run_limited(run_ranks, "memory 200000000", "after")
    assert len(lines) == 3, lines
    for line in lines:
        assert "no memory for a result of 480000000 bytes" in line
    assert sum("rank 1 on localhost cannot go on" in line for line in lines) == 2, lines


def test_a_rank_that_cannot_take_in_shared_memory_is_named_by_all(run_ranks: RunRanks) -> None:
    for spare in range(3, 9):
        lines = run_limited(run_ranks, f"descriptors {spare}", "before init")
        assert len(lines) == 3, lines
        for line in lines:
            assert "error:" in line
            assert "rank 1 " in line or "Too many open files" in line
