"""perseus_core with arrays on GPUs, taken by either protocol, against float64 references."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from references import DTYPES, assert_close, rank_input, reduced

import perseus_core as perseus
from perseus_core import ReduceOp

if os.environ.get("PERSEUS_GPU_CHECK_DEVICE") == "cpu":
    xp: Any = np
else:
    import cupy

    xp = cupy
    _index = int(os.environ.get("PERSEUS_LOCAL_RANK", "0")) % cupy.cuda.runtime.getDeviceCount()
    cupy.cuda.Device(_index).use()

OPS = [ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]
#: CuPy itself has no bfloat16 that both protocols know.
DTYPES = [dtype for dtype in DTYPES if dtype != "bfloat16"]
SHAPES = [(), (0,), (1,), (17,), (3, 5), (4099,)]


@pytest.fixture(autouse=True)
def ready() -> None:
    perseus.init()


class ByInterface:
    """An array of a library that only supports __cuda_array_interface__."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.array.__cuda_array_interface__


class ByDlpack:
    """An array of a library that only supports DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def as_given(array: Any) -> Any:
    return array


PROTOCOLS = [as_given] if xp is np else [as_given, ByInterface, ByDlpack]


def on_host(result: Any) -> np.ndarray:
    if xp is np:
        return np.asarray(result)
    if not isinstance(result, xp.ndarray):
        result = xp.asarray(result)  # which takes it by the array interface
    return xp.asnumpy(result)


def inputs(shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    return [rank_input(rank, shape, dtype) for rank in range(perseus.size())]


def own(arrays: list[np.ndarray]) -> Any:
    return xp.array(arrays[perseus.rank()])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name.lower())
@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_of_every_type_and_shape(dtype, op, protocol):
    if protocol is ByDlpack and dtype == "bool":
        pytest.skip("CuPy gives no boolean by DLPack in all versions")
    for shape in SHAPES:
        arrays = inputs(shape, dtype)
        result = perseus.allreduce(protocol(own(arrays)), op)
        assert on_host(result).dtype == np.dtype(dtype)
        assert_close(on_host(result), reduced(arrays, op), perseus.size())


def test_a_result_is_of_the_inputs_library():
    assert isinstance(perseus.allreduce(xp.ones(4, "float32")), xp.ndarray)


def test_allreduce_in_place():
    arrays = inputs((100_003,), "float32")
    array = own(arrays)
    assert perseus.allreduce(array, ReduceOp.SUM, out=array) is array
    assert_close(on_host(array), reduced(arrays, ReduceOp.SUM), perseus.size())


def test_allreduce_into_another():
    arrays = inputs((1000,), "float64")
    array, out = own(arrays), xp.zeros(1000)
    perseus.allreduce(array, ReduceOp.SUM, prescale=2.0, postscale=0.5, out=out)
    assert_close(on_host(out), reduced(arrays, ReduceOp.SUM), perseus.size() + 2)
    np.testing.assert_array_equal(on_host(array), arrays[perseus.rank()])


def test_parts_of_an_array_that_begin_anywhere():
    arrays = inputs((5000,), "float16")
    for begin, end in [(1, 4999), (3, 4), (7, 1024)]:
        result = perseus.allreduce(own(arrays)[begin:end], ReduceOp.SUM)
        expected = reduced(arrays, ReduceOp.SUM)[begin:end]
        assert_close(on_host(result), expected, perseus.size())


def test_grouped_allreduce():
    groups = [inputs(shape, "float32") for shape in [(3,), (), (1000,), (2, 2), (0,)]]
    results = perseus.grouped_allreduce([own(group) for group in groups], ReduceOp.SUM)
    for result, group in zip(results, groups, strict=True):
        assert_close(on_host(result), reduced(group, ReduceOp.SUM), perseus.size())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_broadcast(protocol):
    for root in range(perseus.size()):
        arrays = inputs((40_000,), "int64")
        result = perseus.broadcast(protocol(own(arrays)), root)
        np.testing.assert_array_equal(on_host(result), arrays[root])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_allgather_of_uneven_parts(protocol):
    arrays = [rank_input(rank, (rank + 1, 5), "float32") for rank in range(perseus.size())]
    result = perseus.allgather(protocol(own(arrays)))
    np.testing.assert_array_equal(on_host(result), np.concatenate(arrays))


def test_alltoall():
    size, rank = perseus.size(), perseus.rank()
    splits = [(rank + to) % 3 for to in range(size)]
    result, received = perseus.alltoall(xp.full((sum(splits), 2), rank, "int32"), splits)
    assert received == [(sender + rank) % 3 for sender in range(size)]
    expected = [sender for sender in range(size) for _ in range((sender + rank) % 3)]
    assert on_host(result)[:, 0].tolist() == expected


def test_reducescatter():
    arrays = inputs((64, 3), "float32")
    result = perseus.reducescatter(own(arrays), ReduceOp.SUM)
    expected = np.array_split(reduced(arrays, ReduceOp.SUM), perseus.size())[perseus.rank()]
    assert_close(on_host(result), expected, perseus.size())


@pytest.mark.gpu
def test_an_array_that_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match="contiguous"):
        perseus.allreduce(xp.ones((4, 4), "float32").T[:2], name="strided")
    assert (
        on_host(perseus.allreduce(xp.ones(3, "float32"), ReduceOp.SUM)).tolist()
        == [perseus.size()] * 3
    )


@pytest.mark.gpu
@pytest.mark.parametrize("protocol", [as_given, ByInterface, ByDlpack])
def test_on_a_stream_of_the_callers(protocol):
    """The array is computed late on it: a large product runs first, and the host does not wait."""
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        square = xp.ones((4096, 4096), "float32")
        product = square
        for _ in range(10):
            product = xp.matmul(product, square) / 4096
        late = product.reshape(-1)[:100_000] * (perseus.rank() + 1)
        result = perseus.allreduce(protocol(late), ReduceOp.SUM)
        total = on_host(result)
    expected = perseus.size() * (perseus.size() + 1) / 2
    np.testing.assert_allclose(total, expected, rtol=1e-4)
