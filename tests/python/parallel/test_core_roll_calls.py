"""Calls that wait, and meet in a roll call if all ranks come at once, in whatever mixture."""

from __future__ import annotations

import time

import numpy as np
import pytest

import perseus_core as perseus

pytestmark = pytest.mark.usefixtures("core")

CALLS = 300


def _expected(call: int, size: int) -> np.ndarray:
    ranks = [np.arange(size, dtype=np.float64) + rank * call for rank in range(perseus.size())]
    return np.sum(ranks, axis=0)


def _input(call: int, size: int) -> np.ndarray:
    return np.arange(size, dtype=np.float32) + perseus.rank() * call


@pytest.mark.parametrize("size", [1, 5, 1024, 1025])
def test_calls_that_wait_give_what_handles_give(size: int) -> None:
    for call in range(CALLS):
        waits = (call // 8 + perseus.rank()) % 3 != 0
        source = _input(call, size)
        if waits:
            result = perseus.allreduce(source, perseus.ReduceOp.SUM, name=f"waits.{size}")
        else:
            handle = perseus.allreduce_async(source, perseus.ReduceOp.SUM, name=f"waits.{size}")
            result = handle.wait()
        np.testing.assert_array_equal(result, _expected(call, size).astype(np.float32))


def test_unnamed_calls_match_in_their_order() -> None:
    for call in range(CALLS):
        result = perseus.allreduce(_input(call, 3), perseus.ReduceOp.SUM)
        np.testing.assert_array_equal(result, _expected(call, 3))


def test_results_go_where_the_caller_says() -> None:
    for call in range(20):
        out = np.zeros((2, 6), np.float32)[:, ::2]
        source = _input(call, 6).reshape(2, 3)
        assert perseus.allreduce(source, perseus.ReduceOp.SUM, out=out) is out
        np.testing.assert_array_equal(out, _expected(call, 6).reshape(2, 3))


def test_ranks_that_come_at_different_times_meet() -> None:
    for call in range(20):
        if call % perseus.size() == perseus.rank():
            time.sleep(0.002)
        result = perseus.allreduce(_input(call, 2), perseus.ReduceOp.SUM, name="late")
        np.testing.assert_array_equal(result, _expected(call, 2))


def test_a_refused_call_meets_that_of_the_others() -> None:
    for call in range(20):
        is_wrong = call % perseus.size() == perseus.rank()
        error = TypeError if is_wrong else perseus.MismatchError
        with pytest.raises(error, match="prescale"):
            perseus.allreduce(
                _input(call, 2),
                perseus.ReduceOp.SUM,
                name="refused",
                prescale="much" if is_wrong else 1.0,
            )
        result = perseus.allreduce(_input(call, 2), perseus.ReduceOp.SUM, name="refused")
        np.testing.assert_array_equal(result, _expected(call, 2))


def test_calls_that_differ_fail_on_every_rank() -> None:
    if perseus.size() == 1:
        pytest.skip("there is nobody to differ from")
    for call in range(20):
        size = 2 + (perseus.rank() == call % perseus.size())
        with pytest.raises(perseus.MismatchError, match="shape"):
            perseus.allreduce(np.zeros(size, np.float32), name="differ")
