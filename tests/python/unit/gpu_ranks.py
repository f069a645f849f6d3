"""Runs in each rank of test_core_gpu.py: every collective, on arrays of the stand-in's GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from references import assert_close, numpy_dtype, rank_input, reduced
from standin_cupy import Array as CupyArray
from standin_cupy import cupy_on
from standin_gpu import DlpackArray, Gpu, InterfaceArray

import perseus_core as core
from perseus_core import DataType, OperationKind, ReduceOp, _engine

SHAPES = [(), (0, 3), (1,), (7, 11), (1000, 33)]
DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8"]

gpu = Gpu()


def inputs(shape: tuple[int, ...], dtype: str, seed: int = 0) -> list[Any]:
    return [rank_input(rank, shape, dtype, seed) for rank in range(core.size())]


def values_of(result: Any) -> np.ndarray:
    """Returns the values of a GpuArray, found through its interface as any consumer would."""
    assert isinstance(result, core.GpuArray), result
    interface = result.__cuda_array_interface__
    assert interface["version"] == 3 and interface["stream"] is None
    assert result.__dlpack_device__() == (2, 0) and result.device_index == 0
    address, is_readonly = interface["data"]
    assert not is_readonly and interface["shape"] == result.shape
    return gpu.read(address, result.shape, np.dtype(interface["typestr"]))


def allreduce_of_all_types_and_shapes() -> None:
    for dtype in DTYPES:
        for shape in SHAPES:
            for kind in (InterfaceArray, DlpackArray):
                all_inputs = inputs(shape, dtype)
                result = core.allreduce(kind(gpu, all_inputs[core.rank()]), ReduceOp.SUM)
                assert result.dtype == np.dtype(dtype)
                assert_close(values_of(result), reduced(all_inputs, ReduceOp.SUM), core.size())


def bfloat16_comes_by_dlpack() -> None:
    all_inputs = inputs((50, 3), "bfloat16")
    array = DlpackArray(gpu, all_inputs[core.rank()])
    result = core.allreduce(array, ReduceOp.SUM)
    assert not hasattr(result, "__cuda_array_interface__")
    assert result.dtype == numpy_dtype("bfloat16") and result.shape == (50, 3)
    out = DlpackArray(gpu, np.zeros_like(all_inputs[0]))
    assert core.allreduce(array, ReduceOp.SUM, out=out) is out
    assert_close(out.read(), reduced(all_inputs, ReduceOp.SUM), core.size())


def every_reduction() -> None:
    for op in (ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
        all_inputs = inputs((40,), "float64", seed=int(op))
        result = core.allreduce(InterfaceArray(gpu, all_inputs[core.rank()]), op)
        assert_close(values_of(result), reduced(all_inputs, op), core.size())


def results_go_into_out() -> None:
    all_inputs = inputs((300, 2), "float32")
    expected = reduced(all_inputs, ReduceOp.SUM)
    for kind, out_kind in ((InterfaceArray, DlpackArray), (DlpackArray, InterfaceArray)):
        array = kind(gpu, all_inputs[core.rank()])
        out = out_kind(gpu, np.zeros((300, 2), np.float32))
        assert core.allreduce(array, ReduceOp.SUM, out=out) is out
        assert_close(out.read(), expected, core.size())
        assert core.allreduce(array, ReduceOp.SUM, out=array) is array
        assert_close(array.read(), expected, core.size())
    root = core.size() - 1
    array = InterfaceArray(gpu, np.full(9, core.rank(), np.int32))
    core.broadcast(array, root, out=array)
    assert array.read().tolist() == [root] * 9


def broadcast_and_gathers() -> None:
    rank, size = core.rank(), core.size()
    for root in range(size):
        result = core.broadcast(InterfaceArray(gpu, np.full((2, 3), rank, np.int16)), root)
        np.testing.assert_array_equal(values_of(result), np.full((2, 3), root))
    truths = np.arange(rank * 4).reshape(rank, 4) % 2 == 1
    gathered = values_of(core.allgather(InterfaceArray(gpu, truths)))
    parts = [np.arange(other * 4).reshape(other, 4) % 2 == 1 for other in range(size)]
    assert gathered.dtype == bool
    np.testing.assert_array_equal(gathered, np.concatenate(parts))
    # Rank r sends q + 1 rows to rank q.
    rows = np.full((size * (size + 1) // 2, 2), rank, np.float32)
    received, splits = core.alltoall(DlpackArray(gpu, rows), [q + 1 for q in range(size)])
    assert splits == [rank + 1] * size
    expected = np.repeat(np.arange(size), rank + 1)
    np.testing.assert_array_equal(values_of(received), np.stack([expected] * 2, axis=1))


def reducescatter_gives_own_rows() -> None:
    rank, size = core.rank(), core.size()
    all_inputs = inputs((2 * size + 1, 5), "float64")
    result = core.reducescatter(InterfaceArray(gpu, all_inputs[rank]), ReduceOp.SUM)
    begin = 0 if rank == 0 else 2 * rank + 1
    own = slice(begin, begin + 2 + (rank == 0))
    assert_close(values_of(result), reduced(all_inputs, ReduceOp.SUM)[own], size)


def results_are_in_memory_of_the_inputs_library() -> None:
    rank, size = core.rank(), core.size()
    with cupy_on(gpu) as cupy:
        array = CupyArray(gpu, np.full((size + 1, 2), rank + 1.0))
        total = size * (size + 1) / 2
        for result in (
            core.allreduce(array, ReduceOp.SUM),
            core.reducescatter(array, ReduceOp.SUM),
        ):
            assert type(result) is CupyArray
            np.testing.assert_array_equal(result.read(), np.full(result.shape, total))
        assert result.shape == (1 + (rank == 0), 2)
        assert cupy.views == 0  # they went there at once
        expected = np.repeat(np.arange(size), np.arange(size) + 1)
        # The copies may be under way while the engine uses its memory again.
        results = [core.allgather(CupyArray(gpu, np.full(rank + 1, rank))) for _ in range(10)]
        for result in results:
            assert type(result) is CupyArray
            np.testing.assert_array_equal(result.read(), expected)
        rows, splits = core.alltoall(CupyArray(gpu, np.full(size, rank)))
        assert type(rows) is CupyArray and splits == [1] * size
        assert rows.read().tolist() == list(range(size)) and cupy.views == 11


def groups_and_many_in_flight() -> None:
    all_inputs = [inputs((n, 3), "float32", seed=n) for n in range(1, 30)]
    arrays = [InterfaceArray(gpu, of_ranks[core.rank()]) for of_ranks in all_inputs]
    results = core.grouped_allreduce(arrays, ReduceOp.SUM)
    handles = [
        core.allreduce_async(array, ReduceOp.SUM, name=f"in.flight.{i}")
        for i, array in enumerate(arrays)
    ]
    for of_ranks, result, handle in zip(all_inputs, results, handles, strict=True):
        expected = reduced(of_ranks, ReduceOp.SUM)
        assert_close(values_of(result), expected, core.size())
        assert_close(values_of(handle.wait()), expected, core.size())


def results_are_inputs_again() -> None:
    first = core.allgather(InterfaceArray(gpu, np.full((1, 2), core.rank() + 1.0)))
    total = core.allreduce(first, ReduceOp.SUM)
    expected = np.arange(1.0, core.size() + 1)[:, None] * np.ones(2) * core.size()
    np.testing.assert_array_equal(values_of(total), expected)


def arrays_live_until_the_end() -> None:
    expected = np.full(100_000, core.size() * (core.size() + 1) / 2)
    handles = []
    for _ in range(5):
        # Freed too early, the stand-in would end the process.
        dropped = core.allreduce_async(InterfaceArray(gpu, np.full(1000, 1.0)), ReduceOp.SUM)
        del dropped
        array = InterfaceArray(gpu, np.full(100_000, core.rank() + 1.0))
        handles.append(core.allreduce_async(array, ReduceOp.SUM))
        del array
        gc.collect()
    for handle in handles:
        np.testing.assert_array_equal(values_of(handle.wait()), expected)


def a_callback_is_told() -> None:
    done = []
    array = InterfaceArray(gpu, np.ones(5))
    handle = core.allreduce_async(array, ReduceOp.SUM, callback=lambda _: done.append(1))
    handle.wait()
    core.allreduce(np.ones(1))  # the callback runs on a thread of its own
    while not done:
        pass


def streams_wait_in_place_of_the_host() -> None:
    """And a name may be used again as soon as one does."""
    passes_host = os.environ["PERSEUS_GPU_OPERATIONS"] == "staged"
    array = InterfaceArray(gpu, np.full(300, core.rank() + 1.0))
    out = InterfaceArray(gpu, np.zeros(300))
    consumer = gpu.new_stream()
    number = _engine.register(core.WORLD, OperationKind.ALLREDUCE, "on.stream")
    options = ((300,), DataType.FLOAT64, ReduceOp.SUM, 1.0, 1.0, 0, 0, None, 1, 0)
    if not passes_host:
        gpu.driver.perseus_standin_hold(ctypes.c_void_p(gpu.stream))
    handles = []
    for source, stream in ((array, gpu.stream), (out, consumer)):
        keep = (source, out)
        handle = _engine.submit_allreduce(
            number, keep, source.address, out.address, *options, stream
        )
        _engine.wait_on_stream(handle, consumer)
        assert _engine.kept(handle) is keep
        _engine.drop_kept(handle)
        assert _engine.kept(handle) is None
        handles.append(handle)
    if not passes_host:
        assert [_engine.poll(handle) for handle in handles] == [0, 0]
        gpu.driver.perseus_standin_release(ctypes.c_void_p(gpu.stream))
    gpu.make_wait(gpu.stream, consumer)
    total = core.size() * (core.size() + 1) / 2 * core.size()
    np.testing.assert_array_equal(out.read(), np.full(300, total))
    for handle in handles:
        assert _engine.wait(handle)
        _engine.release(handle)


def messages_between_gpus_and_cpus() -> None:
    rank, size = core.rank(), core.size()
    to, from_ = (rank + 1) % size, (rank - 1) % size
    for elements in (0, 1, 3000, 300_000):
        mine = rank_input(rank, (elements,), "float32")
        expected = rank_input(from_, (elements,), "float32")
        for kind, codec in ((InterfaceArray, "none"), (DlpackArray, "none"), (CupyArray, "bf16")):
            number = core.find_codec(codec)
            unit = 2.0**-8 if codec == "bf16" and size > 1 else 0.0
            # From a GPU to a GPU, to memory of the engine and to a given array, and to a GPU from a
            # CPU. Some are asked for before they come, and some after.
            sends = [core.isend(kind(gpu, mine), to, tag=t, codec=number) for t in range(3)]
            sends.append(core.isend(mine, to, tag=3, codec=number))
            outs = [kind(gpu, np.zeros(elements, np.float32)) for _ in range(2)]
            host = np.zeros(elements, np.float32)
            message = core.recv(from_, tag=0, out=outs[0])
            assert message.array is outs[0] and message[1:] == (from_, 0)
            core.barrier()
            core.recv(from_, tag=2, out=host)
            core.recv(from_, tag=3, out=outs[1])
            for got in (outs[0].read(), core.recv(from_, tag=1).array, host, outs[1].read()):
                assert (np.abs(got - expected) <= unit * np.abs(expected)).all()
            for handle in sends:
                handle.wait()


def messages_wait_for_the_stream() -> None:
    rank, size = core.rank(), core.size()
    to, from_ = (rank + 1) % size, (rank - 1) % size
    array = InterfaceArray(gpu, np.full(50, float(rank)))
    gpu.synchronize(gpu.stream)
    gpu.driver.perseus_standin_hold(ctypes.c_void_p(gpu.stream))
    later = InterfaceArray(gpu, np.full(50, float(rank) + 100))  # its values are still to come
    sending = core.isend(later, to)
    receive = core.irecv(from_)
    assert_refused(lambda: receive.wait(0.05), TimeoutError)
    core.barrier()
    gpu.driver.perseus_standin_release(ctypes.c_void_p(gpu.stream))
    np.testing.assert_array_equal(receive.wait().array, np.full(50, from_ + 100.0))
    sending.wait()
    # Freed too early, the stand-in would end the process.
    sends = [core.isend(InterfaceArray(gpu, np.ones(400_000)), to) for _ in range(3)]
    gc.collect()
    for _ in range(3):
        core.recv(from_, out=np.zeros(400_000))
    for handle in sends:
        handle.wait()
    del array


def messages_of_wrong_arrays_are_refused() -> None:
    rank, size = core.rank(), core.size()
    to, from_ = (rank + 1) % size, (rank - 1) % size
    host = np.ones((4, 4))
    array = InterfaceArray(gpu, host)
    columns = InterfaceArray(gpu, host, strides=(8, 32))
    liar = InterfaceArray(gpu, host, data=(host.ctypes.data, False))
    readonly = InterfaceArray(gpu, host, data=(array.address, True))
    for wrong, why in ((columns, "not contiguous"), (liar, "not on a GPU")):
        assert_refused(lambda wrong=wrong: core.send(wrong, to), ValueError, why)
        assert_refused(lambda: core.recv(from_), core.MismatchError, why)
    sending = core.isend(array, to)
    assert_refused(lambda: core.recv(from_, out=readonly), ValueError, "out is read-only")
    with contextlib.suppress(core.MismatchError):
        sending.wait()  # complete, if the receiver had room before it refused


class ArrayThatTellsNoStream(InterfaceArray):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = super().__cuda_array_interface__
        return {key: value for key, value in interface.items() if key != "stream"}


def memory_without_a_stream_is_ready() -> None:
    array = InterfaceArray(gpu, np.ones(500), stream=None)
    untold = ArrayThatTellsNoStream(gpu, np.ones(500))
    gpu.synchronize(gpu.stream)
    with gpu.held_default_stream():
        results = [core.allreduce(array, ReduceOp.SUM), core.allgather(untold)]
    np.testing.assert_array_equal(values_of(results[0]), np.full(500, core.size()))
    np.testing.assert_array_equal(values_of(results[1]), np.ones(500 * core.size()))


def older_interfaces_begin_after_the_default_stream() -> None:
    array = InterfaceArray(gpu, np.ones(500), version=2, stream=None)
    gpu.synchronize(gpu.stream)
    with gpu.held_default_stream():
        handle = core.allreduce_async(array, ReduceOp.SUM)
        assert_refused(lambda: handle.wait(0.05), TimeoutError)
    np.testing.assert_array_equal(values_of(handle.wait()), np.full(500, core.size()))


def assert_refused(call: Callable[[], Any], error: Any, *words: str) -> None:
    try:
        call()
    except error as raised:
        for word in words:
            assert word in str(raised), raised
    else:
        raise AssertionError(f"{words} was to be refused")


def wrong_uses_are_refused() -> None:
    array = InterfaceArray(gpu, np.ones((4, 4)))
    columns = InterfaceArray(gpu, np.ones((4, 4)), strides=(8, 32))
    host = np.ones((4, 4))
    liar = InterfaceArray(gpu, host, data=(host.ctypes.data, False))
    readonly = InterfaceArray(gpu, host, data=(array.address, True))
    elsewhere = InterfaceArray(gpu, np.ones((4, 4)), stream=gpu.new_stream())
    gpu.synchronize(gpu.stream)
    complex_numbers = InterfaceArray(gpu, np.ones(2, complex))
    smaller = InterfaceArray(gpu, np.ones(4))

    def reduce(array: Any, **options: Any) -> Callable[[], Any]:
        return lambda: core.allreduce(array, ReduceOp.SUM, **options)

    assert_refused(reduce(columns), ValueError, "not contiguous", "ascontiguousarray")
    assert_refused(reduce(liar), ValueError, "not on a GPU")
    assert_refused(reduce(array, out=np.ones((4, 4))), ValueError, "ndarray is in CPU memory")
    assert_refused(reduce(np.ones((4, 4)), out=array), ValueError, "ndarray is in CPU memory")
    assert_refused(reduce(array, out=readonly), ValueError, "read-only")
    assert_refused(reduce(array, out=elsewhere), ValueError, "streams")
    assert_refused(reduce(array, out=smaller), ValueError, "float64[4]", "float64[4, 4]")
    assert_refused(reduce(complex_numbers), TypeError, "complex128")
    assert_refused(lambda: core.grouped_allreduce([array, np.ones(3)]), ValueError, "in CPU memory")
    assert_refused(reduce(InterfaceArray(gpu, host, stream=0)), ValueError, "stream 0")

    result = core.allreduce(array, ReduceOp.SUM)
    assert_refused(lambda: memoryview(result._result), BufferError)
    assert_refused(lambda: np.asarray(result), TypeError, "on GPU 0")
    assert_refused(lambda: np.asarray(result._result), TypeError, "on GPU 0")
    assert_refused(lambda: np.from_dlpack(result), (BufferError, RuntimeError))


def capturing_streams_are_refused() -> None:
    array = InterfaceArray(gpu, np.ones(4))
    gpu.synchronize(gpu.stream)
    captured = gpu.new_stream()
    array.interface["stream"] = captured
    gpu.driver.perseus_standin_set_capturing(ctypes.c_void_p(captured), 1)
    assert_refused(lambda: core.allreduce(array), ValueError, "captured")


def ranks_that_differ_are_told() -> None:
    if core.size() == 1:
        return
    values = np.ones(6)
    array: Any = InterfaceArray(gpu, values) if core.rank() == 0 else values
    assert_refused(lambda: core.allreduce(array), core.MismatchError, "CPU", "GPU")
    # One rank's mistake is an error everywhere, and the job goes on.
    mine = InterfaceArray(gpu, np.ones((4, 4)))
    if core.rank() == 0:
        mine.interface["strides"] = (8, 32)
    error = ValueError if core.rank() == 0 else core.MismatchError
    assert_refused(lambda: core.allreduce(mine), error, "contiguous")
    again = InterfaceArray(gpu, np.ones(3))
    np.testing.assert_array_equal(values_of(core.allreduce(again)), np.ones(3))


def several_gpus_of_a_process() -> None:
    second = Gpu(1)
    mixed = [DlpackArray(gpu, np.ones(2)), DlpackArray(second, np.ones(2))]
    assert_refused(lambda: core.grouped_allreduce(mixed), ValueError, "GPU 0 and GPU 1")
    if os.environ["PERSEUS_GPU_OPERATIONS"] == "nccl":  # which takes one GPU of a process
        return
    array = InterfaceArray(second, np.full(20, core.rank() + 1.0))
    result = core.allreduce(array, ReduceOp.SUM)
    assert result.device_index == 1
    address, _ = result.__cuda_array_interface__["data"]
    total = core.size() * (core.size() + 1) / 2
    assert second.read(address, (20,), np.float64).tolist() == [total] * 20


CHECKS = [
    allreduce_of_all_types_and_shapes,
    bfloat16_comes_by_dlpack,
    every_reduction,
    results_go_into_out,
    broadcast_and_gathers,
    reducescatter_gives_own_rows,
    results_are_in_memory_of_the_inputs_library,
    groups_and_many_in_flight,
    results_are_inputs_again,
    messages_between_gpus_and_cpus,
    messages_wait_for_the_stream,
    messages_of_wrong_arrays_are_refused,
    arrays_live_until_the_end,
    a_callback_is_told,
    streams_wait_in_place_of_the_host,
    memory_without_a_stream_is_ready,
    older_interfaces_begin_after_the_default_stream,
    wrong_uses_are_refused,
    capturing_streams_are_refused,
    ranks_that_differ_are_told,
    several_gpus_of_a_process,
]

if __name__ == "__main__":
    core.init()
    for check in CHECKS:
        if check.__name__ in os.environ.get("CHECKS", check.__name__):
            check()
    core.shutdown()
    print("well", flush=True)
