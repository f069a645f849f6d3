"""A wrong argument raises a clear error where it can be detected, and the job goes on."""

from __future__ import annotations

import numpy as np
import pytest

import perseus_core as perseus
from perseus_core import HorovodInternalError, MismatchError, ReduceOp

pytestmark = pytest.mark.usefixtures("core")


@pytest.fixture(autouse=True)
def the_job_goes_on(core):
    yield
    result = perseus.allreduce(np.ones(3), ReduceOp.SUM, name="after")
    np.testing.assert_array_equal(result, np.full(3, perseus.size()))


def is_first() -> bool:
    return perseus.rank() == 0


@pytest.mark.usefixtures("two_ranks")
class TestRanksThatDiffer:
    def test_in_shape(self):
        with pytest.raises(MismatchError, match=r"different\.shape"):
            perseus.allreduce(np.ones(3 if is_first() else 4), name="different.shape")

    def test_in_number_of_dimensions(self):
        with pytest.raises(MismatchError):
            perseus.allreduce(np.ones((4,) if is_first() else (2, 2)), name="different.dims")

    def test_in_dtype(self):
        dtype = np.float32 if is_first() else np.float64
        with pytest.raises(MismatchError, match="float"):
            perseus.allreduce(np.ones(3, dtype), name="different.dtype")

    def test_in_reduction(self):
        with pytest.raises(MismatchError):
            perseus.allreduce(
                np.ones(3), ReduceOp.SUM if is_first() else ReduceOp.MAX, name="different.op"
            )

    def test_in_scale(self):
        with pytest.raises(MismatchError):
            perseus.allreduce(np.ones(3), prescale=1.0 if is_first() else 2.0, name="different.pre")
        with pytest.raises(MismatchError):
            perseus.allreduce(
                np.ones(3), postscale=1.0 if is_first() else 2.0, name="different.post"
            )

    def test_in_root(self):
        with pytest.raises(MismatchError):
            perseus.broadcast(np.ones(3), 0 if is_first() else 1, name="different.root")

    def test_in_broadcast_shape(self):
        with pytest.raises(MismatchError):
            perseus.broadcast(np.ones(3 if is_first() else 2), 0, name="different.broadcast")

    def test_in_a_dimension_that_allgather_cannot_join(self):
        with pytest.raises(MismatchError):
            perseus.allgather(np.ones((2, 3 if is_first() else 4)), name="different.gather")

    def test_in_the_number_of_grouped_tensors(self):
        with pytest.raises(MismatchError):
            perseus.grouped_allreduce(
                [np.ones(2)] * (2 if is_first() else 3), name="different.count"
            )

    def test_again_and_again_under_one_name(self):
        for _ in range(3):
            with pytest.raises(MismatchError):
                perseus.allreduce(np.ones(3 if is_first() else 4), name="again")
            perseus.allreduce(np.ones(3), name="again")

    def test_while_others_are_in_flight(self):
        good = [
            perseus.allreduce_async(np.full(100, float(i)), ReduceOp.MAX, name=f"good.{i}")
            for i in range(20)
        ]
        bad = perseus.allreduce_async(np.ones(3 if is_first() else 4), name="bad")
        with pytest.raises(MismatchError):
            bad.wait()
        for i, handle in enumerate(good):
            np.testing.assert_array_equal(handle.wait(), np.full(100, float(i)))

    def test_a_name_twice_in_flight(self):
        if is_first():
            first = perseus.allreduce_async(np.ones(3), ReduceOp.SUM, name="twice")
            with pytest.raises(ValueError, match="twice"):
                perseus.allreduce_async(np.ones(3), ReduceOp.SUM, name="twice")
            perseus.barrier()
        else:
            perseus.barrier()
            first = perseus.allreduce_async(np.ones(3), ReduceOp.SUM, name="twice")
        np.testing.assert_array_equal(first.wait(), np.full(3, perseus.size()))

    def test_an_error_is_raised_each_time_the_handle_is_waited_for(self):
        handle = perseus.allreduce_async(np.ones(3 if is_first() else 4), name="repeated")
        for _ in range(2):
            with pytest.raises(MismatchError):
                handle.wait()


def test_unsupported_dtypes_are_named():
    for array in [np.array(["a"]), np.array([1j]), np.array([object()]), np.ones(2, np.uint64)]:
        with pytest.raises(TypeError, match=array.dtype.name):
            perseus.allreduce(array)


def test_a_root_outside_the_world():
    for root in (-1, perseus.size()):
        with pytest.raises(ValueError, match="root"):
            perseus.broadcast(np.ones(2), root)


def test_wrong_splits():
    size = perseus.size()
    for splits in ([1] * (size + 1), [-1] * size, [3] + [size] * (size - 1)):
        with pytest.raises(ValueError, match="split"):
            perseus.alltoall(np.ones(2), splits)


def test_rows_that_do_not_divide_without_splits(two_ranks):
    with pytest.raises(ValueError):
        perseus.alltoall(np.ones(perseus.size() + 1))


def test_a_scalar_cannot_be_scattered():
    with pytest.raises(ValueError):
        perseus.reducescatter(np.float32(1))


def test_a_scalar_cannot_be_gathered():
    with pytest.raises(HorovodInternalError):
        perseus.allgather(np.float32(1))


def test_an_unknown_process_set():
    with pytest.raises(ValueError):
        perseus.allreduce(np.ones(2), process_set=12345)


def test_an_output_that_does_not_fit():
    with pytest.raises(ValueError, match="out"):
        perseus.allreduce(np.ones(3), out=np.ones(4))
    with pytest.raises(ValueError, match="read-only"):
        perseus.allreduce(np.ones(3), out=np.broadcast_to(np.float64(0), (3,)))
