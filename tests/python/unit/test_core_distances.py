"""Tests how far apart this host's processors are, and what perseusrun says of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import perseus_core
from perseus.run import core_distances

PROCESSORS = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(PROCESSORS) < 2, reason="there is one processor only")
def test_a_cache_line_takes_some_nanoseconds() -> None:
    try:
        distance = perseus_core.core_distance(PROCESSORS[0], PROCESSORS[1])
    except perseus_core.TimedOutError as error:  # other tests compute on both
        assert "never ran at once within 0.2 s" in str(error)
    else:
        assert 1 < distance < 100_000


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (-1, 0, "the processor is -1; it must be one that this process may run on"),
        (PROCESSORS[0], 1 << 20, "the processor is 1048576; it must be one that this process may"),
        (PROCESSORS[0], PROCESSORS[0], "; they must be different"),
    ],
)
def test_what_cannot_be_measured_is_an_error(first: int, second: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        perseus_core.core_distance(first, second)


def test_perseusrun_shows_all_of_them() -> None:
    command = [sys.executable, "-m", "perseus.run", "--core-distances"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    if len(PROCESSORS) == 1:
        assert result.stdout == "This process may run on one processor only.\n"
    else:
        assert "Nanoseconds until a cache line" in result.stdout
        assert " ns.\n" in result.stdout or "not measured" in result.stdout


def two_caches(count: int) -> dict[tuple[int, int], float]:
    """Returns distances of processors of which the even ones share a cache, and the odd ones."""
    return {
        (one, other): 152.0 if (one + other) % 2 else 28.0 + one
        for one in range(count)
        for other in range(one + 1, count)
    }


def test_processors_under_one_cache_are_a_group() -> None:
    assert core_distances.lines(range(4), two_caches(4)) == [
        "Nanoseconds until a cache line that one processor has written is at another:",
        "         0    1    2    3",
        "    0    -  152   28  152",
        "    1  152    -  152   29",
        "    2   28  152    -  152",
        "    3  152   29  152    -",
        "Near each other: 0, 2, 28 ns",
        "Near each other: 1, 3, 29 ns",
        "From group to group: 152 ns.",
    ]


def test_many_processors_get_no_table() -> None:
    near = dict.fromkeys(two_caches(40), 30.0)
    assert core_distances.lines(range(40), near)[1:] == ["All are near each other: 30 ns."]


def test_two_that_never_ran_at_once_are_left_out() -> None:
    distances = two_caches(3)
    del distances[0, 2]
    assert core_distances.lines(range(3), distances)[2:] == [
        "    0    -  152    -",
        "    1  152    -  152",
        "    2    -  152    -",
        "All are near each other: 152 ns.",
    ]
    assert core_distances.lines(range(2), {})[-1] == "From group to group: not measured."
