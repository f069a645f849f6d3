"""Every collective of perseus_core against float64 references."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from references import DTYPES, FLOATS, INTEGERS, OPS, assert_close, numpy_dtype, rank_input, reduced

import perseus_core as perseus
from perseus_core import ReduceOp

pytestmark = pytest.mark.usefixtures("core")

SHAPES = [(), (0,), (1,), (17,), (3, 5), (0, 4), (4099,)]


def inputs(shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    return [rank_input(rank, shape, dtype) for rank in range(perseus.size())]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name.lower())
@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_of_every_type_and_shape(dtype, op):
    for shape in SHAPES:
        arrays = inputs(shape, dtype)
        result = perseus.allreduce(arrays[perseus.rank()], op)
        assert result.dtype == numpy_dtype(dtype)
        assert_close(result, reduced(arrays, op), perseus.size())


@pytest.mark.parametrize("elements", [100_000, 3_000_001])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_allreduce_of_large_arrays(dtype, elements):
    arrays = inputs((elements,), dtype)
    result = perseus.allreduce(arrays[perseus.rank()], ReduceOp.SUM)
    assert_close(result, reduced(arrays, ReduceOp.SUM), perseus.size())


def test_allreduce_leaves_its_input_alone():
    array = rank_input(perseus.rank(), (1000,), "float32")
    before = array.copy()
    perseus.allreduce(array)
    np.testing.assert_array_equal(array, before)


def test_allreduce_in_place():
    arrays = inputs((1000,), "float32")
    own = arrays[perseus.rank()].copy()
    result = perseus.allreduce(own, ReduceOp.SUM, out=own)
    assert result is own
    assert_close(own, reduced(arrays, ReduceOp.SUM), perseus.size())


def test_allreduce_into_a_strided_output():
    arrays = inputs((50,), "float64")
    wide = np.zeros(100)
    perseus.allreduce(arrays[perseus.rank()], ReduceOp.SUM, out=wide[::2])
    assert_close(wide[::2], reduced(arrays, ReduceOp.SUM), perseus.size())
    np.testing.assert_array_equal(wide[1::2], 0)


def test_allreduce_of_strided_transposed_and_foreign_order_inputs():
    arrays = inputs((12, 10), "float32")
    own = arrays[perseus.rank()]
    expected = reduced(arrays, ReduceOp.SUM)
    assert_close(perseus.allreduce(own[::3, ::-2], ReduceOp.SUM), expected[::3, ::-2], 4)
    assert_close(perseus.allreduce(own.T, ReduceOp.SUM), expected.T, 4)
    assert_close(perseus.allreduce(own.astype(">f4"), ReduceOp.SUM), expected, 4)


def test_allreduce_of_a_readonly_input():
    array = np.full(5, perseus.rank() + 1.0)
    array.flags.writeable = False
    size = perseus.size()
    np.testing.assert_array_equal(
        perseus.allreduce(array, ReduceOp.SUM), np.full(5, size * (size + 1) / 2)
    )


def test_allreduce_of_a_python_number():
    assert float(perseus.allreduce(float(perseus.rank()), ReduceOp.MAX)) == perseus.size() - 1


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32", "float64"])
def test_allreduce_scales_before_and_after(dtype):
    arrays = inputs((1000,), dtype)
    result = perseus.allreduce(arrays[perseus.rank()], ReduceOp.SUM, prescale=2.0, postscale=0.5)
    assert_close(result, reduced(arrays, ReduceOp.SUM), perseus.size() + 2)


def test_grouped_allreduce_gives_results_in_order():
    groups = [inputs(shape, "float32") for shape in [(3,), (), (1000,), (2, 2)]]
    results = perseus.grouped_allreduce([group[perseus.rank()] for group in groups], ReduceOp.SUM)
    for result, group in zip(results, groups, strict=True):
        assert_close(result, reduced(group, ReduceOp.SUM), perseus.size())


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_from_every_root(dtype):
    for root in range(perseus.size()):
        for shape in [(), (0,), (7,), (40_000,)]:
            arrays = inputs(shape, dtype)
            result = perseus.broadcast(arrays[perseus.rank()], root)
            np.testing.assert_array_equal(result, arrays[root])


@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather_of_uneven_parts(dtype):
    rows = [(rank * 3 + 1) % 4 for rank in range(perseus.size())]  # rank 1 has none
    arrays = [rank_input(rank, (count, 5), dtype) for rank, count in enumerate(rows)]
    result = perseus.allgather(arrays[perseus.rank()])
    assert result.dtype == numpy_dtype(dtype)
    np.testing.assert_array_equal(result, np.concatenate(arrays))


def test_allgather_of_nothing_on_every_rank():
    assert perseus.allgather(np.empty((0, 3), np.float32)).shape == (0, 3)


def test_allgather_of_large_arrays():
    arrays = [
        rank_input(rank, (200_000 + 1000 * rank,), "float32") for rank in range(perseus.size())
    ]
    np.testing.assert_array_equal(perseus.allgather(arrays[perseus.rank()]), np.concatenate(arrays))


def test_the_result_of_a_gather_owns_its_memory():
    result = perseus.allgather(np.full(100_000, perseus.rank(), np.float32))
    for _ in range(5):
        perseus.allgather(np.full(100_000, -1, np.float32))
    expected = np.repeat(np.arange(perseus.size(), dtype=np.float32), 100_000)
    np.testing.assert_array_equal(result, expected)
    result += 1  # and may be written to


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "bfloat16", "float32", "bool"])
def test_alltoall_with_splits(dtype):
    size, rank = perseus.size(), perseus.rank()
    # Rank r sends (r + p) % 3 rows to rank p.
    splits = [[(sender + to) % 3 for to in range(size)] for sender in range(size)]
    sent = [rank_input(sender, (sum(splits[sender]), 4), dtype) for sender in range(size)]
    result, received = perseus.alltoall(sent[rank], splits[rank])
    assert received == [splits[sender][rank] for sender in range(size)]
    parts = [np.split(sent[sender], np.cumsum(splits[sender])[:-1])[rank] for sender in range(size)]
    np.testing.assert_array_equal(result, np.concatenate(parts))


def test_alltoall_in_equal_parts():
    size, rank = perseus.size(), perseus.rank()
    result, received = perseus.alltoall(np.arange(2 * size) + 100 * rank)
    assert received == [2] * size
    expected = [100 * sender + 2 * rank + i for sender in range(size) for i in range(2)]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVERAGE], ids=["sum", "average"])
@pytest.mark.parametrize("dtype", [*INTEGERS[4:], *FLOATS])
@pytest.mark.parametrize("rows", [0, 1, 5, 1000])
def test_reducescatter_gives_extra_rows_to_the_first_ranks(rows, dtype, op):
    size, rank = perseus.size(), perseus.rank()
    arrays = inputs((rows, 3), dtype)
    result = perseus.reducescatter(arrays[rank], op)
    own = np.array_split(reduced(arrays, op), size)[rank]
    assert_close(result, own, size)


def test_barrier_returns_on_all_ranks():
    perseus.barrier()


def test_many_operations_in_flight_in_different_order_on_each_rank():
    size, rank = perseus.size(), perseus.rank()
    order = np.random.default_rng(rank).permutation(200)
    handles = {
        int(i): perseus.allreduce_async(
            np.full(1 + i, rank + i, np.float64), ReduceOp.SUM, name=f"shuffled.{i}"
        )
        for i in order
    }
    for i in range(200):
        expected = np.full(1 + i, size * i + size * (size - 1) / 2)
        np.testing.assert_array_equal(handles[i].wait(), expected)


def test_more_unnamed_operations_in_flight_than_names_in_the_round():
    handles = [perseus.allreduce_async(np.array([float(i)]), ReduceOp.MAX) for i in range(2500)]
    for i, handle in enumerate(handles):
        assert handle.wait()[0] == i


def test_shapes_may_change_between_steps_under_one_name():
    for step in range(12):
        shape = (step % 4 + 1, 3)
        result = perseus.allreduce(np.ones(shape, np.float32), ReduceOp.SUM, name="changing")
        np.testing.assert_array_equal(result, np.full(shape, perseus.size()))


def test_the_same_name_on_different_kinds_does_not_collide():
    a = perseus.allreduce_async(np.ones(4), ReduceOp.SUM, name="shared")
    b = perseus.broadcast_async(np.full(4, perseus.rank()), 0, name="shared")
    c = perseus.allgather_async(np.ones(1), name="shared")
    np.testing.assert_array_equal(a.wait(), np.full(4, perseus.size()))
    np.testing.assert_array_equal(b.wait(), np.zeros(4))
    np.testing.assert_array_equal(c.wait(), np.ones(perseus.size()))


def test_dynamic_names():
    for step in range(300):
        result = perseus.allreduce(np.array([step]), ReduceOp.SUM, name=f"step.{step}")
        assert result[0] == step * perseus.size()


def test_poll_turns_true_and_wait_may_be_repeated():
    handle = perseus.allreduce_async(np.ones(3), ReduceOp.SUM)
    first = handle.wait(timeout=30)
    assert perseus.poll(handle)
    assert perseus.wait(handle) is first


def test_wait_times_out_while_another_rank_has_not_come(two_ranks):
    array = np.ones(2)
    if perseus.rank() == 0:
        handle = perseus.allreduce_async(array, ReduceOp.SUM, name="late")
        assert not handle.poll()
        with pytest.raises(TimeoutError):
            handle.wait(timeout=0.05)
        perseus.barrier()
    else:
        perseus.barrier()
        handle = perseus.allreduce_async(array, ReduceOp.SUM, name="late")
    np.testing.assert_array_equal(handle.wait(), np.full(2, perseus.size()))


def test_threads_that_wait_for_one_operation_share_its_time_out(two_ranks):
    array = np.ones(2)
    if perseus.rank() == 0:
        handle = perseus.allreduce_async(array, ReduceOp.SUM, name="shared")
        waits = threading.Event()

        def wait_long():
            waits.set()
            handle.wait(timeout=60)

        other = threading.Thread(target=wait_long)
        other.start()
        waits.wait()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            handle.wait(timeout=0.2)
        assert 0.2 <= time.monotonic() - began < 30
        perseus.barrier()
        while not handle.poll():
            time.sleep(0.001)
        handle.wait(timeout=0)  # though the other one may have yet to return
        other.join()
    else:
        perseus.barrier()
        handle = perseus.allreduce_async(array, ReduceOp.SUM, name="shared")
    np.testing.assert_array_equal(handle.wait(), np.full(2, perseus.size()))


def test_a_wait_without_time_takes_what_is_complete_from_a_thread_that_waits():
    handle = perseus.allreduce_async(np.ones(2), ReduceOp.SUM)
    while not handle.poll():
        time.sleep(0.001)
    with handle._lock:  # as a thread in wait() has it
        taker = threading.Thread(target=lambda: results.append(handle.wait(timeout=0)))
        results: list[np.ndarray] = []
        taker.start()
        time.sleep(0.1)
    taker.join()
    np.testing.assert_array_equal(results[0], np.full(2, perseus.size()))


def test_callbacks_run_with_the_handle_and_may_take_the_result():
    seen: list[float] = []
    done = threading.Event()

    def callback(handle: perseus.Handle) -> None:
        seen.append(float(handle.wait()[0]))
        if len(seen) == 20:
            done.set()

    handles = [
        perseus.allreduce_async(np.array([float(i)]), ReduceOp.MAX, callback=callback)
        for i in range(20)
    ]
    assert done.wait(30)
    assert sorted(seen) == [float(i) for i in range(20)]
    assert [float(handle.wait()[0]) for handle in handles] == [float(i) for i in range(20)]


def test_a_dropped_handle_does_not_take_the_arrays_from_the_engine():
    for _ in range(50):
        perseus.allreduce_async(np.ones(10_000), ReduceOp.SUM)
    np.testing.assert_array_equal(
        perseus.allreduce(np.ones(10), ReduceOp.SUM), np.full(10, perseus.size())
    )


def test_several_threads_submit_and_wait():
    size, failures = perseus.size(), []

    def work(thread: int) -> None:
        for step in range(50):
            result = perseus.allreduce(
                np.full(10, thread), ReduceOp.SUM, name=f"thread.{thread}.{step % 5}"
            )
            if not (result == thread * size).all():
                failures.append((thread, step))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("codec", ["fp16", "bf16"])
def test_codecs_lose_no_more_than_their_type(codec):
    arrays = inputs((50_000,), "float32")
    result = perseus.allreduce(
        arrays[perseus.rank()], ReduceOp.SUM, codec=perseus.find_codec(codec)
    )
    unit = {"fp16": 2.0**-10, "bf16": 2.0**-7}[codec]
    expected = reduced(arrays, ReduceOp.SUM)
    assert np.abs(result - expected).max() <= unit * 2 * perseus.size() * (perseus.size() + 1)
