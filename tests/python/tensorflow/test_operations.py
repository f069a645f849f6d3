"""Horovod's operations for TensorFlow against float64: eagerly, in functions, in graphs."""

from __future__ import annotations

import json
import os
import traceback

import numpy as np
import pytest
import tensorflow as tf
from references import assert_close, rank_input, reduced

import perseus.tensorflow.horovod as hvd
from perseus.tensorflow.horovod import mpi_ops
from perseus_core import ReduceOp

FLOATS = ["float16", "bfloat16", "float32", "float64"]
REDUCIBLE = ["uint8", "int8", "int16", "int32", "int64", *FLOATS]
MOVABLE = [*REDUCIBLE, "uint16", "bool"]
SHAPES = [(), (0,), (1,), (17,), (3, 5, 2), (5000,)]
OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]


def eagerly(function):
    return function


def rank_inputs(shape, dtype):
    return [rank_input(rank, shape, dtype) for rank in range(hvd.size())]


def own(arrays):
    array = arrays[hvd.rank()]
    # Older releases do not know the type that NumPy has of others.
    if array.dtype.name == "bfloat16":
        return tf.cast(array.astype(np.float32), tf.bfloat16)
    return tf.constant(array)


@pytest.mark.parametrize("run", [eagerly, tf.function])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_allreduce_of_every_type(dtype, op, run):
    for shape in SHAPES:
        arrays = rank_inputs(shape, dtype)
        result = run(lambda x: hvd.allreduce(x, op=op))(own(arrays))
        assert result.dtype.name == dtype
        assert_close(result.numpy(), reduced(arrays, ReduceOp(op)), hvd.size())


@pytest.mark.parametrize("run", [eagerly, tf.function])
def test_scale_factors_are_as_exact_as_the_type(run):
    arrays = rank_inputs((100,), "float64")
    call = run(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=1 / 3, postscale_factor=1e-8))
    expected = reduced(arrays, ReduceOp.SUM) / 3 * 1e-8
    np.testing.assert_allclose(call(own(arrays)).numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("run", [eagerly, tf.function])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_grouped_allreduce(dtype, run):
    groups = [rank_inputs((n, 3), dtype) for n in (4, 0, 100)]
    results = run(lambda *xs: hvd.grouped_allreduce(list(xs), op=hvd.Sum))(*map(own, groups))
    for arrays, result in zip(groups, results, strict=True):
        assert_close(result.numpy(), reduced(arrays, ReduceOp.SUM), hvd.size())
    assert hvd.grouped_allreduce([]) == []


@pytest.mark.parametrize("run", [eagerly, tf.function])
@pytest.mark.parametrize("dtype", MOVABLE)
def test_movements_of_every_type(dtype, run):
    # Rank r has r + 1 rows, so that rank 0's differ from the others'.
    arrays = [rank_input(rank, (rank + 1, 2), dtype) for rank in range(hvd.size())]
    gathered = run(hvd.allgather)(own(arrays))
    np.testing.assert_array_equal(gathered.numpy(), np.concatenate(arrays))
    both = run(lambda x: hvd.grouped_allgather([x, x[:0]]))(own(arrays))
    np.testing.assert_array_equal(both[0].numpy(), np.concatenate(arrays))
    assert both[1].shape == (0, 2)

    same = rank_inputs((3, 2), dtype)
    for root in range(hvd.size()):
        result = run(lambda x, root=root: hvd.broadcast(x, root))(own(same))
        np.testing.assert_array_equal(result.numpy(), same[root])

    # Rank r sends r + to rows to each.
    splits = [[rank + to for to in range(hvd.size())] for rank in range(hvd.size())]
    sent = [rank_input(rank, (sum(splits[rank]), 2), dtype) for rank in range(hvd.size())]
    output, received = run(lambda x: hvd.alltoall(x, splits[hvd.rank()]))(own(sent))
    parts = []
    for rank in range(hvd.size()):
        begin = sum(splits[rank][: hvd.rank()])
        parts.append(sent[rank][begin : begin + splits[rank][hvd.rank()]])
    np.testing.assert_array_equal(output.numpy(), np.concatenate(parts))
    assert received.dtype == tf.int32
    assert received.numpy().tolist() == [len(part) for part in parts]


def test_alltoall_without_splits_gives_the_rows_alone():
    result = hvd.alltoall(tf.range(2 * hvd.size()) + 100 * hvd.rank())
    expected = [100 * rank + 2 * hvd.rank() + i for rank in range(hvd.size()) for i in (0, 1)]
    assert result.numpy().tolist() == expected


@pytest.mark.parametrize("run", [eagerly, tf.function])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_reducescatter(op, run):
    rows = 2 * hvd.size() + 1
    arrays = rank_inputs((rows, 3), "float32")
    whole = reduced(arrays, ReduceOp(op))
    own_rows = np.array_split(whole, hvd.size())[hvd.rank()]
    result = run(lambda x: hvd.reducescatter(x, op=op))(own(arrays))
    assert_close(result.numpy(), own_rows, hvd.size())
    both = run(lambda x: hvd.grouped_reducescatter([x, 2 * x], op=op))(own(arrays))
    assert_close(both[0].numpy(), own_rows, hvd.size())
    assert_close(both[1].numpy(), 2 * own_rows, hvd.size())


def test_shapes_are_known_where_they_can_be():
    @tf.function(input_signature=[tf.TensorSpec([4, None, 3])])
    def trace(x):
        assert hvd.allreduce(x).shape.as_list() == [4, None, 3]
        assert hvd.broadcast(x, 0).shape.as_list() == [4, None, 3]
        assert hvd.allgather(x).shape.as_list() == [None, None, 3]
        assert hvd.reducescatter(x).shape.as_list() == [None, None, 3]
        output, received = hvd.alltoall(x, [4] + [0] * (hvd.size() - 1))
        assert output.shape.as_list() == [None, None, 3]
        assert received.shape.as_list() == [None]
        assert hvd.size_op().shape.as_list() == []
        return x

    trace.get_concrete_function()
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="no rows"):
        tf.function(hvd.allgather).get_concrete_function(tf.TensorSpec([]))


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_indexed_slices_are_gathered(op):
    slices = tf.IndexedSlices(
        tf.ones([2, 3]) * (hvd.rank() + 1.0), tf.constant([hvd.rank(), 0]), tf.constant([9, 3])
    )
    result = hvd.allreduce(slices, op=op)
    expected = np.zeros((9, 3))
    for rank in range(hvd.size()):
        expected[rank] += rank + 1
        expected[0] += rank + 1
    expected /= hvd.size() if op == hvd.Average else 1
    dense = tf.convert_to_tensor(result)
    np.testing.assert_allclose(dense.numpy(), expected, rtol=1e-6)
    mixed = hvd.grouped_allreduce([tf.ones([2]), slices], op=hvd.Sum)
    assert mixed[0].numpy().tolist() == [hvd.size()] * 2
    assert isinstance(mixed[1], tf.IndexedSlices)
    scaled = hvd.allreduce(slices, op=op, prescale_factor=4.0, postscale_factor=0.5)
    np.testing.assert_allclose(tf.convert_to_tensor(scaled), 2 * expected, rtol=1e-6)
    for wrong in ({"op": hvd.Min}, {"op": hvd.Adasum}):
        with pytest.raises(NotImplementedError):
            hvd.allreduce(slices, **wrong)


def test_compression_sends_halves():
    arrays = rank_inputs((100,), "float32")
    result = hvd.allreduce(own(arrays), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert result.dtype == tf.float32
    halves = [array.astype(np.float16) for array in arrays]
    assert_close(result.numpy().astype(np.float16), reduced(halves, ReduceOp.SUM), hvd.size())


def gradient(function, x, run):
    """Returns the gradient of the sum of the result's elements, each times its index."""

    def weighed(x):
        result = function(x)
        weights = tf.reshape(tf.range(tf.size(result)), tf.shape(result))
        return tf.reduce_sum(result * tf.cast(weights, result.dtype))

    def derive(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = weighed(x)
        return tape.gradient(y, x)

    return run(derive)(x).numpy()


@pytest.mark.parametrize("run", [eagerly, tf.function])
def test_gradients(run):
    x = tf.reshape(tf.range(6.0), [3, 2])
    n, rank = hvd.size(), hvd.rank()
    numbers = np.arange(6.0).reshape(3, 2)

    def check(function, expected):
        np.testing.assert_allclose(gradient(function, x, run), expected, rtol=1e-6)

    check(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), numbers * n * 0.5)
    check(lambda x: hvd.allreduce(x), numbers)
    check(lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1], numbers * n)
    check(lambda x: hvd.broadcast(x, n - 1), numbers * (rank == n - 1))
    check(lambda x: hvd.allgather(x), numbers + 6 * rank)
    check(lambda x: hvd.grouped_allgather([x, x])[0], numbers + 6 * rank)
    # All rows go to rank 0, and their gradients come back from it.
    to_first = [3] + [0] * (n - 1)
    check(lambda x: hvd.alltoall(x, to_first)[0], numbers + 6 * rank)


@pytest.mark.parametrize("run", [eagerly, tf.function])
def test_gradient_of_reducescatter(run):
    rows = tf.ones([hvd.size(), 2])
    result = gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), rows, run)
    np.testing.assert_allclose(result, np.array([[0.0, 1.0]] * hvd.size()) * hvd.size())


def test_graphs_of_the_first_tensorflow():
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        x = tf.compat.v1.placeholder(tf.float32, [None], name="a/b")
        reduced_x = hvd.allreduce(x, op=hvd.Sum)
        assert reduced_x.op.name == "HorovodAllreduce_a_b_0"
        (derived,) = tf.gradients(reduced_x, x)
        size = hvd.size_op()
        values = session.run([reduced_x, derived, size], {x: [1.0, 2.0]})
    np.testing.assert_allclose(values[0], np.array([1.0, 2.0]) * hvd.size())
    np.testing.assert_allclose(values[1], np.ones(2) * hvd.size())
    assert values[2] == hvd.size()


def test_queries_are_answered_when_they_run():
    assert hvd.rank_op().numpy() == hvd.rank()
    assert tf.function(hvd.local_rank_op)().numpy() == hvd.local_rank()
    assert tf.function(hvd.local_size_op)().numpy() == hvd.local_size()
    assert hvd.size_op().numpy() == hvd.size()
    assert hvd.process_set_included_op().numpy() == 1
    assert hvd.size_op(12345).numpy() < 0
    assert hvd.process_set_included_op(12345).numpy() < 0


def test_fifty_collectives_of_a_function_run_at_once(tmp_path):
    count = 50

    @tf.function
    def reduce_all(xs):
        return [hvd.allreduce(x, op=hvd.Sum, name=f"each{i}") for i, x in enumerate(xs)]

    xs = [tf.ones([1000]) * i for i in range(count)]
    reduce_all(xs)
    path = tmp_path / f"timeline{hvd.rank()}.json"
    hvd.start_timeline(str(path))
    for _ in range(20):  # the engine may be faster than TensorFlow's threads once
        for i, result in enumerate(reduce_all(xs)):
            np.testing.assert_array_equal(result.numpy(), np.full(1000, float(i * hvd.size())))
    hvd.stop_timeline()
    if hvd.rank() > 0 or hvd.size() == 1:
        return
    most = most_at_once(json.loads(path.read_text()))
    assert most > count // 2, f"at most {most} of {count} were under way at once"


def most_at_once(events) -> int:
    """Returns how many of the rows named each<i> were in progress at the same time, at most."""
    rows = {e["pid"] for e in events if "each" in str(e.get("args", {}).get("name", ""))}
    depth = {row: 0 for row in rows}
    most = 0
    for event in sorted((e for e in events if "ts" in e), key=lambda e: e["ts"]):
        if event["pid"] not in rows or event["ph"] not in "BE":
            continue
        depth[event["pid"]] += 1 if event["ph"] == "B" else -1
        most = max(most, sum(1 for each in depth.values() if each > 0))
    return most


def test_what_differs_between_ranks_fails_on_all_and_the_job_goes_on(two_ranks):
    with pytest.raises(tf.errors.FailedPreconditionError, match="same shape"):
        hvd.allreduce(tf.ones([2 + hvd.rank()]), name="shapes")
    with pytest.raises(tf.errors.FailedPreconditionError):
        hvd.broadcast(tf.ones([2]), hvd.rank() % 2, name="roots")
    with pytest.raises(tf.errors.InvalidArgumentError):
        hvd.broadcast(tf.ones([2]), hvd.size() + 3, name="no such root")
    assert hvd.allreduce(tf.ones([2]), op=hvd.Sum).numpy().tolist() == [hvd.size()] * 2


def test_what_is_wrong_on_one_rank_fails_on_all(two_ranks):
    splits = [99] * hvd.size() if hvd.rank() == 1 else None
    wrong = tf.errors.InvalidArgumentError if hvd.rank() == 1 else tf.errors.FailedPreconditionError
    with pytest.raises(wrong):
        hvd.alltoall(tf.ones([hvd.size()]), splits, name="splits")
    matrix = [[1]] if hvd.rank() == 1 else None
    with pytest.raises(wrong):
        hvd.alltoall(tf.ones([hvd.size()]), matrix, name="matrix")
    # A rank that leaves at once may not have told the others.
    assert hvd.allreduce(tf.ones([2]), op=hvd.Sum).numpy().tolist() == [hvd.size()] * 2


def test_types_that_cannot_be_sent_are_refused():
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        hvd.allreduce(tf.constant([1j]))
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(tf.ones([1]), average=True, op=hvd.Sum)


def test_process_sets(two_ranks):
    os.environ["PERSEUS_DYNAMIC_PROCESS_SETS"] = "1"
    hvd.shutdown()
    hvd.init()
    even = hvd.add_process_set(range(0, hvd.size(), 2))
    if even.included():
        count = even.size()
        result = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=even))(tf.ones([3]))
        assert result.numpy().tolist() == [count] * 3
        assert hvd.size_op(even.process_set_id).numpy() == count
    assert hvd.process_set_included_op(even.process_set_id).numpy() == int(even.included())
    if not even.included():
        with pytest.raises(tf.errors.InvalidArgumentError):
            hvd.allreduce(tf.ones([3]), process_set=even, name="outside")
    hvd.remove_process_set(even)


def test_functions_call_ours_as_they_are_and_not_translated(monkeypatch):
    files = set()
    matched = mpi_ops.matched

    def note_callers(*args):
        files.update(frame.filename for frame in traceback.extract_stack())
        return matched(*args)

    monkeypatch.setattr(mpi_ops, "matched", note_callers)
    tf.function(lambda: hvd.allreduce(tf.ones([2]), name="as_it_is"))()
    assert mpi_ops.__file__ in files


@pytest.mark.parametrize("name", [None, "odd"])
@pytest.mark.parametrize(
    ("wrong", "call"),
    [
        ("string", lambda value, **named: hvd.allreduce(value, **named)),
        ("sum", lambda value, **named: hvd.allreduce(1.0, op=value, **named)),
        ("complex", lambda value, **named: hvd.allgather([value], **named)),
        ("root", lambda value, **named: hvd.broadcast(1.0, value, **named)),
        ("splits", lambda value, **named: hvd.alltoall([1.0], value, **named)),
        ("rows", lambda value, **named: hvd.reducescatter(value, **named)),
    ],
)
def test_what_one_rank_gets_wrong_fails_on_all(two_ranks, wrong, call, name):
    right = {"sum": hvd.Sum, "root": 0, "splits": [1] + [0] * (hvd.size() - 1)}
    named = {} if name is None else {"name": name}
    if hvd.rank() == 0:
        value = {"sum": "sum", "root": "0", "splits": [0.5]}.get(wrong, "text")
        with pytest.raises((TypeError, ValueError)):
            call(value, **named)
    else:
        with pytest.raises(tf.errors.FailedPreconditionError, match="rank 0"):
            call(right.get(wrong, [1.0]), **named)
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == hvd.size()


@tf.function
def summed(x):
    return hvd.allreduce(x, op=hvd.Sum)


def test_turns_of_a_loop_are_one_after_the_other():
    x = tf.fill([100], hvd.rank() + 1.0)
    ranks = sum(range(1, hvd.size() + 1))
    summed(x)  # which the loop below does not trace again

    @tf.function
    def loop():
        total = tf.zeros_like(x)
        for turn in tf.range(20):
            total += hvd.allreduce(x * tf.cast(turn, tf.float32), op=hvd.Sum)
        return total

    @tf.function
    def loop_of_functions():
        sums = tf.TensorArray(tf.float32, size=20)
        for turn in tf.range(20):
            sums = sums.write(turn, summed(x * tf.cast(turn, tf.float32)))
        return tf.reduce_sum(sums.stack(), axis=0)

    @tf.function
    def mapped():
        turns = tf.range(20, dtype=tf.float32)
        in_turn = lambda turn: hvd.allreduce(x * turn, op=hvd.Sum)  # noqa: E731
        return tf.reduce_sum(tf.map_fn(in_turn, turns, parallel_iterations=10), axis=0)

    for function in (loop, loop_of_functions, mapped):
        for _ in range(3):
            np.testing.assert_allclose(function(), np.full(100, 190.0 * ranks), rtol=1e-6)


def test_a_jacobian_is_reduced():
    x = tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def jacobian():
        with tf.GradientTape() as tape:
            y = hvd.allreduce(x * x * (hvd.rank() + 1.0), op=hvd.Sum)
        return tape.jacobian(y, x)

    # Each rank's y is of all ranks' x, and so is each row.
    expected = np.diag([2.0, 4.0, 6.0]) * (hvd.rank() + 1) * hvd.size()
    np.testing.assert_allclose(jacobian(), expected)


def test_join(two_ranks):
    if hvd.rank() > 0:
        for i in range(3):
            result = hvd.allreduce(tf.ones([4]), op=hvd.Sum, name=f"join{i}")
            assert result.numpy().tolist() == [hvd.size() - 1] * 4
    last = hvd.join()
    assert last.dtype == tf.int32
    assert last.numpy() in range(hvd.size())


def test_not_initialized():
    hvd.shutdown()
    try:
        with pytest.raises(tf.errors.FailedPreconditionError, match="init"):
            hvd.allreduce(tf.ones([1]))
        with pytest.raises(tf.errors.FailedPreconditionError, match="init"):
            hvd.size_op()
        with pytest.raises(ValueError):
            hvd.rank()
    finally:
        hvd.init()
