"""PERSEUS_ALLREDUCE_NANCHECK: which rank submitted non-finite values, and the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import perseus_core as core
from perseus_core import ReduceOp

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

#: Merged with others, and large enough for several shards of which each is reduced in place.
SIZES = (1000, 700_001)


@contextmanager
def engine_with(monkeypatch: pytest.MonkeyPatch, mode: str) -> Iterator[None]:
    if core.is_initialized():
        core.barrier()
        core.shutdown()
    with monkeypatch.context() as environment:
        environment.setenv("PERSEUS_ALLREDUCE_NANCHECK", mode)
        core.init()
        yield
        core.barrier()
        core.shutdown()


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with engine_with(monkeypatch, "raise"):
        yield


@pytest.fixture
def warning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with engine_with(monkeypatch, "warn"):
        yield


@pytest.fixture
def zeroing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with engine_with(monkeypatch, "zero"):
        yield


def last() -> int:
    return core.size() - 1


def ones(elements: int, dtype: str = "float32", bad: dict[int, float] | None = None) -> np.ndarray:
    """`bad`: values that the last rank has at these indices instead."""
    array = np.ones(elements, dtype)
    if core.rank() == last():
        for place, value in (bad or {}).items():
            array[place] = value
    return array


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.PRODUCT, ReduceOp.ADASUM])
def test_all_ranks_raise_the_same(dtype: str, elements: int, op: ReduceOp) -> None:
    place = elements - 3
    for step in range(1, 4):
        is_bad = step == 3
        bad = ones(elements, dtype, {place: np.inf, place + 2: np.nan} if is_bad else None)
        handles = [
            core.allreduce_async(values, op, name=name, out=values)
            for name, values in (("good", ones(elements, dtype)), ("bad", bad))
        ]
        assert np.isfinite(handles[0].wait()).all()
        if is_bad:
            with pytest.raises(core.NonFiniteError) as caught:
                handles[1].wait()
        else:
            assert np.isfinite(handles[1].wait()).all()
    assert str(caught.value) == (
        f"allreduce of 'allreduce.bad': rank {last()} submitted infinity in step 3, "
        f"first at element {place}"
    )
    # And the job goes on.
    np.testing.assert_array_equal(
        core.allreduce(ones(elements, dtype), ReduceOp.SUM, name="bad"), core.size()
    )


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("elements", SIZES)
def test_with_all_that_needs_a_copy(elements: int) -> None:
    source = ones(elements, bad={7: np.nan})
    before = source.copy()
    for changed in ({"prescale": 0.5}, {"codec": core.find_codec("fp16")}, {"out": None}):
        with pytest.raises(core.NonFiniteError, match=f"rank {last()} submitted NaN .*element 7$"):
            core.allreduce(source, **changed)
        np.testing.assert_array_equal(source, before)


@pytest.mark.usefixtures("raising")
def test_all_who_submitted_it_are_named() -> None:
    bad = np.full(100, np.nan if core.rank() % 2 == 0 else 1.0)
    with pytest.raises(core.NonFiniteError) as caught:
        core.allreduce(bad, name="x")
    others = {1: "", 2: "", 3: "; so did rank 2", 4: "; so did rank 2"}
    text = f"rank 0 submitted NaN in step 1, first at element 0{others[core.size()]}"
    assert str(caught.value) == f"allreduce of 'allreduce.x': {text}"


@pytest.mark.usefixtures("raising", "two_ranks")
@pytest.mark.parametrize("elements", SIZES)
def test_a_sum_out_of_range_is_nobodys_fault(elements: int) -> None:
    values = np.ones(elements, "float16")
    values[elements // 2] = 60000
    with pytest.raises(core.NonFiniteError) as caught:
        core.allreduce(values, ReduceOp.SUM, name="x")
    assert str(caught.value) == (
        "allreduce of 'allreduce.x': the reduction of finite values made infinity in step 1, first "
        f"at element {elements // 2}: it is out of the range of float16"
    )
    assert np.isfinite(core.allreduce(values, name="x")).all()


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize(
    "codec, op", [("", "SUM"), ("fp16", "SUM"), ("bf16", "SUM"), ("", "ADASUM")]
)
def test_what_the_postscale_makes_infinite_is_found(elements: int, codec: str, op: str) -> None:
    number = core.find_codec(codec) if codec else 0
    with pytest.raises(core.NonFiniteError, match=r"of finite values made infinity .*element 0"):
        core.allreduce(ones(elements), ReduceOp[op], postscale=1e39, codec=number)


@pytest.mark.usefixtures("raising")
def test_a_group_says_which_of_its_tensors() -> None:
    arrays = [ones(10), ones(20, bad={3: -np.inf}), ones(30, bad={0: np.nan})]
    with pytest.raises(core.NonFiniteError, match=r"infinity .*first at element 3 of tensor 1$"):
        core.grouped_allreduce(arrays)


@pytest.mark.usefixtures("raising")
def test_infinity_belongs_to_minima_and_maxima() -> None:
    values = ones(10, bad={4: np.inf})
    assert core.allreduce(values, ReduceOp.MAX)[4] == np.inf
    assert np.isfinite(core.allreduce(values, ReduceOp.MIN)[:4]).all()


@pytest.mark.usefixtures("raising")
def test_integers_are_finite() -> None:
    values = np.full(10, np.iinfo("int32").max, "int32")
    core.allreduce(values, ReduceOp.SUM)


@pytest.mark.usefixtures("raising")
def test_a_reduce_scatter_fails_on_all_ranks() -> None:
    rows = 3 * core.size() + 1
    values = np.ones((rows, 5))
    core.reducescatter(values, name="x")
    if core.rank() == 0:
        values[rows - 1, 2] = np.nan
    with pytest.raises(core.NonFiniteError) as caught:
        core.reducescatter(values, name="x")
    assert str(caught.value) == (
        f"reducescatter of 'reducescatter.x': rank 0 submitted NaN in step 2, first at element "
        f"{5 * (rows - 1) + 2}"
    )


@pytest.mark.usefixtures("raising", "two_ranks")
@pytest.mark.parametrize("elements", SIZES)
def test_a_rank_that_has_joined_answers_too(elements: int) -> None:
    if core.rank() != 0:
        with pytest.raises(core.NonFiniteError, match=f"rank {last()} submitted NaN"):
            core.allreduce(ones(elements, bad={9: np.nan}), name="x")
    core.join()


@pytest.mark.usefixtures("warning")
@pytest.mark.parametrize("elements", SIZES)
def test_a_warning_comes_from_who_submitted_it(
    elements: int, capfd: pytest.CaptureFixture[str]
) -> None:
    before = core.counters()["non_finite_reductions"]
    result = core.allreduce(ones(elements, bad={5: np.nan}), ReduceOp.SUM, name="x")
    assert np.isnan(result[5])
    assert np.isfinite(np.delete(result, 5)).all()
    lines = [line for line in capfd.readouterr().err.splitlines() if "submitted NaN" in line]
    expected = f"allreduce of 'allreduce.x': rank {last()} submitted NaN in step 1, first at "
    assert [line for line in lines if f"{expected}element 5" in line] == lines
    assert len(lines) == (core.rank() == last())
    assert core.counters()["non_finite_reductions"] == before + 1


@pytest.mark.usefixtures("zeroing")
@pytest.mark.parametrize("elements", SIZES)
@pytest.mark.parametrize("in_place", [True, False])
def test_zeros_take_its_place(
    elements: int, in_place: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    values = ones(elements, bad={5: np.nan, elements - 1: np.inf})
    before = values.copy()
    result = core.allreduce(values, ReduceOp.SUM, name="x", out=values if in_place else None)
    expected = np.full(elements, core.size())
    expected[[5, -1]] = core.size() - 1
    np.testing.assert_array_equal(result, expected)
    if not in_place:
        np.testing.assert_array_equal(values, before)
    lines = [line for line in capfd.readouterr().err.splitlines() if "0 was put" in line]
    assert len(lines) == (core.rank() == last())
    for line in lines:
        assert f"rank {last()} submitted NaN in step 1, first at element 5; 0 was put" in line


@pytest.mark.usefixtures("zeroing", "two_ranks")
def test_zeros_take_the_place_of_what_the_sum_made() -> None:
    values = np.full(1000, 2.0, "float16")
    values[3] = 60000
    expected = np.full(1000, 2.0 * core.size())
    expected[3] = 0
    np.testing.assert_array_equal(core.allreduce(values, ReduceOp.SUM), expected)


@pytest.mark.usefixtures("zeroing")
def test_zeros_in_a_reduce_scatter() -> None:
    values = ones(4 * core.size(), bad={2: np.nan})
    before = values.copy()
    result = core.reducescatter(values, ReduceOp.SUM)
    expected = np.full(4 * core.size(), core.size())
    expected[2] -= 1
    own = slice(4 * core.rank(), 4 * core.rank() + 4)
    np.testing.assert_array_equal(result, expected[own])
    np.testing.assert_array_equal(values, before)


def test_modes_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    core.init()
    rank, size = core.rank(), core.size()
    if size == 1:
        pytest.skip("needs ranks that can differ")
    core.barrier()
    core.shutdown()
    monkeypatch.setenv("PERSEUS_ALLREDUCE_NANCHECK", "raise" if rank == 1 else "off")
    with pytest.raises(ValueError, match=r"NANCHECK is 'raise' on rank 1 .* 'off' on rank 0"):
        core.init()
