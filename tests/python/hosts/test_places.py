"""Ranks on several hosts find each other, know their places, and compute the right sums."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from netlab import Hosts, lines

PLACES = """
import perseus_core
perseus_core.init()
print(perseus_core.rank(), perseus_core.local_rank(), perseus_core.local_size(),
      perseus_core.cross_rank(), perseus_core.cross_size(), perseus_core.is_homogeneous())
perseus_core.shutdown()
"""

SUMS = """
import numpy, perseus_core
perseus_core.init()
rank, size = perseus_core.rank(), perseus_core.size()
for count in (1, 1000, 3_000_001):
    arrays = [numpy.random.default_rng(r).standard_normal(count) for r in range(size)]
    mine = arrays[rank].astype(numpy.float32)
    result = perseus_core.allreduce(mine, perseus_core.ReduceOp.SUM, name=f"sum of {count}")
    numpy.testing.assert_allclose(result, sum(arrays), rtol=1e-5, atol=1e-5)
perseus_core.shutdown()
print("right")
"""


def test_two_hosts_of_two(hosts: Hosts) -> None:
    result = hosts.run_script("0:2,1:2", PLACES)
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout) == [
        "0 0 2 0 2 True",
        "1 1 2 0 2 True",
        "2 0 2 1 2 True",
        "3 1 2 1 2 True",
    ]


def test_hosts_of_different_size(hosts: Hosts) -> None:
    result = hosts.run_script("0:1,1:2,2:1", PLACES)
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout) == [
        "0 0 1 0 3 False",
        "1 0 2 1 3 False",
        "2 1 2 0 1 False",
        "3 0 1 2 3 False",
    ]


@pytest.mark.parametrize("places", ["0:1,1:1", "0:2,1:2", "0:1,1:1,2:1,3:1", "0:1,1:3", "1:1,2:1"])
def test_sums_are_right(hosts: Hosts, places: str) -> None:
    result = hosts.run_script(places, SUMS)
    assert result.returncode == 0, result.stderr
    assert set(lines(result.stdout)) == {"right"}


@pytest.mark.parametrize("mode", ["flat", "hierarchical"])
def test_sums_are_right_in_both_modes(hosts: Hosts, mode: str) -> None:
    result = hosts.run_script("0:2,1:2", SUMS, PERSEUS_ALLREDUCE_MODE=mode)
    assert result.returncode == 0, result.stderr
    assert set(lines(result.stdout)) == {"right"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "files",
    [
        # These reach all of the engine that moves data.
        pytest.param("test_core_*.py", id="core"),
        pytest.param("test_torch_*.py", marks=pytest.mark.long, id="torch"),
    ],
)
def test_the_parallel_suite_passes_over_hosts(hosts: Hosts, files: str) -> None:
    suite = sorted((Path(__file__).parent.parent / "parallel").glob(files))
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    result = hosts.run("0:2,1:1", *pytest_, *map(str, suite), timeout=240)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
