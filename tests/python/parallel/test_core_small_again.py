"""Small operations whose names the ranks know: their inputs come with the agreement."""

from __future__ import annotations

import numpy as np
import pytest

import perseus_core as core

pytestmark = pytest.mark.usefixtures("core")


# With all ranks' inputs, some of these fit with the agreement, and others do not.
ELEMENTS = [1, 7, 250, 600, 5000]
STEPS = 4
DTYPES = [np.float32, np.uint8, np.int64, np.bool_]


def values(rank: int, step: int, count: int, dtype: type) -> np.ndarray:
    return ((np.arange(count) + 31 * rank + 7 * step) % 3).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", ELEMENTS)
def test_broadcast_from_every_root_in_and_out_of_place(count: int, dtype: type) -> None:
    for step in range(STEPS):
        for root in range(core.size()):
            array = values(core.rank(), step, count, dtype)
            expected = values(root, step, count, dtype)
            name = f"again.{count}.{root}"
            given = array.copy()
            np.testing.assert_array_equal(core.broadcast(array, root, name=name), expected)
            np.testing.assert_array_equal(array, given)
            core.broadcast(array, root, name=name, out=array)
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", ELEMENTS)
def test_allgather_of_rows_that_differ_between_ranks_in_some_steps(count: int, dtype: type) -> None:
    for step in range(2 * STEPS):
        # In every other step all have as many rows, sometimes others than in the step before.
        rows = [1 + step // 4 + (rank if step % 2 else 0) for rank in range(core.size())]
        parts = [
            values(rank, step, of_rank * count, dtype).reshape(of_rank, count)
            for rank, of_rank in enumerate(rows)
        ]
        result = core.allgather(parts[core.rank()], name=f"again.{count}")
        np.testing.assert_array_equal(result, np.concatenate(parts))


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", ELEMENTS)
def test_alltoall(count: int, dtype: type, is_even: bool) -> None:
    size, rank = core.size(), core.rank()
    for step in range(STEPS):
        # Rank i sends rank j so many rows; each rank sends as many in all.
        rows = [[1 if is_even else (i + j + step) % size for j in range(size)] for i in range(size)]
        sent = [
            values(i, step, sum(rows[i]) * count, dtype).reshape(-1, count) for i in range(size)
        ]
        begins = [sum(rows[i][:rank]) for i in range(size)]
        expected = [sent[i][begins[i] : begins[i] + rows[i][rank]] for i in range(size)]
        result, splits = core.alltoall(sent[rank], rows[rank], name=f"again.{count}.{is_even}")
        np.testing.assert_array_equal(result, np.concatenate(expected))
        assert list(splits) == [rows[i][rank] for i in range(size)]


def test_nothing_is_sent_to_some_ranks() -> None:
    size, rank = core.size(), core.rank()
    for _ in range(STEPS):
        splits = [2 if other == 0 else 0 for other in range(size)]
        result, received = core.alltoall(np.full(2, rank, np.int32), splits, name="to the first")
        assert result.tolist() == (np.repeat(np.arange(size), 2).tolist() if rank == 0 else [])
        assert list(received) == ([2] * size if rank == 0 else [0] * size)


def test_many_at_once() -> None:
    """Several operations of one agreement have no inputs with it."""
    size, rank = core.size(), core.rank()
    for step in range(STEPS):
        works = [
            (
                core.broadcast_async(np.array([rank + i]), i % size, name=f"many.b{i}"),
                core.allgather_async(np.array([rank * i + step]), name=f"many.g{i}"),
            )
            for i in range(20)
        ]
        for i, (broadcast, allgather) in enumerate(works):
            assert broadcast.wait().tolist() == [i % size + i]
            assert allgather.wait().tolist() == [other * i + step for other in range(size)]
