"""The ranks that give the state to those that join, and the digest by which they compare it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perseus.common import state_sources
from perseus.common.state_digest import BITS, digest
from perseus.common.state_sources import Group, groups_of

WEIGHED = 65536  # bytes of a block


@pytest.mark.parametrize(
    ("hosts", "holders", "groups"),
    [
        ([[0, 1]], {0}, [Group((0,), (1,))]),
        ([[0, 1, 2, 3]], {0, 1, 2}, [Group((0,), (3,))]),
        ([[0], [1], [2], [3]], {0, 1, 2}, [Group((0, 1, 2), (3,))]),
        ([[0, 1], [2, 3], [4, 5]], {0, 1, 2, 3}, [Group((0, 2), (4, 5))]),
        # A rank of the same host gives it at the speed of memory.
        ([[0, 1], [2, 3]], {0, 1, 2}, [Group((2,), (3,))]),
        (
            [[0, 3], [1, 4], [2], [5]],
            {0, 1, 2},
            [Group((0,), (3,)), Group((1,), (4,)), Group((0, 1, 2), (5,))],
        ),
        ([[i] for i in range(12)], set(range(11)), [Group(tuple(range(8)), (11,))]),
    ],
)
def test_who_gives_the_state_to_whom(
    hosts: list[list[int]], holders: set[int], groups: list[Group]
) -> None:
    assert groups_of(hosts, holders) == groups


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("sizes", [[1], [3, 100, 0, 64], [1000], [64] * 20, [7, 7000, 7]])
def test_the_parts_of_all_sources_make_up_the_state(count: int, sizes: list[int]) -> None:
    data = np.arange(sum(sizes)).astype(np.uint8)
    borders = [0, *itertools.accumulate(sizes)]
    pieces = [(str(i), data[a:b]) for i, (a, b) in enumerate(itertools.pairwise(borders))]
    cut = [
        piece
        for index in range(count)
        for piece in state_sources._cut(
            pieces,
            state_sources._border(data.size, index, count),
            state_sources._border(data.size, index + 1, count),
        )
    ]
    assert b"".join(piece.tobytes() for _, piece in cut) == data.tobytes()
    names = [name for name, _ in cut]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("size", [0, 1, 1000, WEIGHED, WEIGHED + 1, 3 * WEIGHED])
def test_a_digest_tells_arrays_apart(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    of_data = digest(data)
    assert 0 <= of_data < 1 << BITS
    assert digest(data.copy()) == of_data
    assert digest(data, "x") != of_data
    for place in {0, size // 2, size - 1} if size else set():
        changed = data.copy()
        changed[place] ^= 128
        assert digest(changed) != of_data


@pytest.mark.parametrize("distance", [8, WEIGHED])
def test_a_digest_tells_the_order(distance: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 3 * WEIGHED, np.uint8)
    swapped = data.copy()
    swapped[:8], swapped[distance : distance + 8] = data[distance : distance + 8], data[:8]
    assert digest(swapped) != digest(data)
