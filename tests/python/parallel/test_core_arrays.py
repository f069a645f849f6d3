"""Arrays of other kinds than NumPy's."""

from __future__ import annotations

import array

import numpy as np
import pytest

import perseus_core as perseus
from perseus_core import ReduceOp

pytestmark = pytest.mark.usefixtures("core")


class OnlyDlpack:
    """Speaks DLPack, and no version of it beyond 0."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, stream=None):
        return self.inner.__dlpack__()

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


class OnlyInterface:
    def __init__(self, inner):
        self.inner = inner

    @property
    def __array_interface__(self):
        return self.inner.__array_interface__


class OnRadeon:
    def __dlpack__(self, **_):
        raise AssertionError("its device was to be asked first")

    def __dlpack_device__(self):
        return 10, 0  # kDLROCM


@pytest.mark.parametrize(
    "wrap",
    [
        OnlyDlpack,
        OnlyInterface,
        lambda inner: array.array("d", inner.tolist()),
        memoryview,
        lambda inner: inner.tolist(),
    ],
    ids=["dlpack", "array_interface", "array.array", "memoryview", "list"],
)
def test_protocols(wrap):
    own = np.arange(6, dtype=np.float64) + perseus.rank()
    result = perseus.allreduce(wrap(own), ReduceOp.SUM)
    size = perseus.size()
    np.testing.assert_array_equal(result, size * np.arange(6) + size * (size - 1) / 2)


def test_in_place_through_a_protocol():
    own = array.array("i", [perseus.rank()] * 3)
    perseus.allreduce(own, ReduceOp.MAX, out=own)
    assert own.tolist() == [perseus.size() - 1] * 3


def test_torch_tensors_come_through_dlpack():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool):
        tensor = torch.ones(4, 6, dtype=dtype)
        result = perseus.allreduce(tensor.T, ReduceOp.MAX)
        assert result.shape == (6, 4)
        np.testing.assert_array_equal(result.astype(np.float64), np.ones((6, 4)))


def test_an_array_in_other_memory_is_refused():
    with pytest.raises(ValueError, match="device type 10"):
        perseus.allreduce(OnRadeon())


def test_bytes_are_numbers_and_masks_are_not_dropped(core):
    total = perseus.allgather(b"ab")
    assert total.tolist() == [97, 98] * perseus.size()
    with pytest.raises(TypeError, match="mask would be lost"):
        perseus.allgather(np.ma.masked_array([1.0, 2.0], [True, False]))
