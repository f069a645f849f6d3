"""Horovod's operations for MXNet against float64, on arrays of mx.nd and of mx.np."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from references import assert_close, rank_input, reduced
from resident_memory import resident

import perseus.mxnet.horovod as hvd
from perseus.common.exceptions import HorovodInternalError
from perseus_core import ReduceOp

DTYPES = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]
OPS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
SHAPES = [(1,), (17,), (3, 5, 2), (5000,)]
# Shapes that arrays of mx.nd do not support.
NUMPY_SHAPES = [(), (0,), (0, 3)]


def as_nd(array):
    return mx.nd.array(array, dtype=array.dtype)


def as_np(array):
    with mx.util.np_shape(True):
        return mx.np.array(array, dtype=array.dtype)


KINDS = [pytest.param(as_nd, id="nd"), pytest.param(as_np, id="np")]


def rank_inputs(shape, dtype, seed=0):
    return [rank_input(rank, shape, dtype, seed) for rank in range(hvd.size())]


def own(arrays):
    return arrays[hvd.rank()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_of_every_type(dtype, op, kind):
    for shape in SHAPES + (NUMPY_SHAPES if kind is as_np else []):
        arrays = rank_inputs(shape, dtype)
        given = kind(own(arrays))
        with mx.util.np_shape(kind is as_np):
            result = hvd.allreduce(given, op=op)
            assert type(result) is type(given)
            assert result is not given
            assert np.dtype(result.dtype) == dtype
            expected = reduced(arrays, ReduceOp(op))
            assert_close(result.asnumpy(), expected, hvd.size())
            np.testing.assert_array_equal(given.asnumpy(), own(arrays))
            assert hvd.allreduce_(given, op=op) is given
            assert_close(given.asnumpy(), expected, hvd.size())


def test_bools_are_reduced():
    arrays = rank_inputs((40,), "bool")
    result = hvd.allreduce(as_np(own(arrays)), op=hvd.Sum)
    assert result.asnumpy().dtype == bool
    np.testing.assert_array_equal(result.asnumpy(), np.any(arrays, axis=0))


def test_adasum_of_one_direction_is_an_average():
    same = rank_input(0, (30,), "float32")
    assert_close(hvd.allreduce(as_nd(same), op=hvd.Adasum).asnumpy(), same.astype(float), 8)


def test_average_is_the_default_and_its_old_argument_is_heard():
    ones = mx.nd.ones((3,))
    assert hvd.allreduce(ones).asnumpy().tolist() == [1.0] * 3
    with pytest.warns(DeprecationWarning):
        assert hvd.allreduce(ones, average=False).asnumpy().tolist() == [hvd.size()] * 3
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(ones, average=True, op=hvd.Sum)


def test_scale_factors_are_as_exact_as_the_type():
    arrays = rank_inputs((100,), "float64")
    result = hvd.allreduce(
        as_nd(own(arrays)), op=hvd.Sum, prescale_factor=1 / 3, postscale_factor=1e-8
    )
    expected = reduced(arrays, ReduceOp.SUM) / 3 * 1e-8
    np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_grouped_allreduce(kind, in_place):
    groups = [
        rank_inputs((n, 3), dtype, n)
        for n, dtype in ((4, "float32"), (1, "int64"), (99, "float32"))
    ]
    given = [kind(own(arrays)) for arrays in groups]
    call = hvd.grouped_allreduce_ if in_place else hvd.grouped_allreduce
    results = call(given, op=hvd.Sum)
    for arrays, one, result in zip(groups, given, results, strict=True):
        assert (result is one) == in_place
        assert_close(result.asnumpy(), reduced(arrays, ReduceOp.SUM), hvd.size())
    assert call([]) == []


def test_slices_of_one_array_are_reduced_as_a_group():
    arrays = rank_inputs((6, 4), "float32")
    whole = as_nd(own(arrays))
    hvd.grouped_allreduce_([whole[4:6], whole[0:2]], op=hvd.Sum)
    expected = reduced(arrays, ReduceOp.SUM)
    expected[2:4] = own(arrays)[2:4]
    assert_close(whole.asnumpy(), expected, hvd.size())


def test_arrays_of_a_group_that_share_memory_are_an_error():
    whole = mx.nd.ones((6, 4))
    hvd.grouped_allreduce_([whole, whole[4:6]], op=hvd.Sum, name="twice")
    with pytest.raises(ValueError, match="share memory") as raised:
        whole.wait_to_read()
    assert isinstance(raised.value, mx.MXNetError)
    assert str(raised.value).startswith("allreduce of 'grouped_allreduce.twice': two arrays of")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_movements_of_every_type(dtype, kind):
    # Rank r has r + 1 rows.
    arrays = [rank_input(rank, (rank + 1, 2), dtype) for rank in range(hvd.size())]
    gathered = hvd.allgather(kind(own(arrays)))
    np.testing.assert_array_equal(gathered.asnumpy(), np.concatenate(arrays))
    assert np.dtype(gathered.dtype) == dtype
    assert type(gathered) is type(kind(own(arrays)))
    both = hvd.grouped_allgather([kind(own(arrays)), kind(own(arrays)[:1])])
    np.testing.assert_array_equal(both[0].asnumpy(), np.concatenate(arrays))
    assert both[1].shape == (hvd.size(), 2)

    same = rank_inputs((3, 2), dtype)
    for root in range(hvd.size()):
        given = kind(own(same))
        np.testing.assert_array_equal(hvd.broadcast(given, root).asnumpy(), same[root])
        np.testing.assert_array_equal(given.asnumpy(), own(same))
        assert hvd.broadcast_(given, root) is given
        np.testing.assert_array_equal(given.asnumpy(), same[root])

    # Rank r sends r + to + 1 rows to each.
    splits = [[rank + to + 1 for to in range(hvd.size())] for rank in range(hvd.size())]
    sent = [rank_input(rank, (sum(splits[rank]), 2), dtype) for rank in range(hvd.size())]
    output, received = hvd.alltoall(kind(own(sent)), own(splits))
    parts = []
    for rank in range(hvd.size()):
        begin = sum(splits[rank][: hvd.rank()])
        parts.append(sent[rank][begin : begin + splits[rank][hvd.rank()]])
    np.testing.assert_array_equal(output.asnumpy(), np.concatenate(parts))
    assert np.dtype(received.dtype) == "int32"
    assert received.asnumpy().tolist() == [len(part) for part in parts]
    as_array = mx.nd.array(own(splits), dtype="int32")
    again, _ = hvd.alltoall(kind(own(sent)), as_array)
    np.testing.assert_array_equal(again.asnumpy(), np.concatenate(parts))


def test_alltoall_without_splits_gives_the_rows_alone():
    result = hvd.alltoall(mx.nd.arange(2 * hvd.size()) + 100 * hvd.rank())
    expected = [100 * rank + 2 * hvd.rank() + i for rank in range(hvd.size()) for i in (0, 1)]
    assert result.asnumpy().tolist() == expected


@mx.util.use_np_shape
def test_rows_that_nobody_gives():
    assert hvd.allgather(as_np(np.zeros((0, 3), "float32"))).shape == (0, 3)
    mine = np.ones((hvd.rank(), 3), "float32")
    total = hvd.size() * (hvd.size() - 1) // 2
    assert hvd.allgather(as_np(mine)).shape == (total, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_reducescatter(op, kind):
    rows = 2 * hvd.size() + 1
    arrays = rank_inputs((rows, 3), "float32")
    own_rows = np.array_split(reduced(arrays, ReduceOp(op)), hvd.size())[hvd.rank()]
    given = kind(own(arrays))
    assert_close(hvd.reducescatter(given, op=op).asnumpy(), own_rows, hvd.size())
    both = hvd.grouped_reducescatter([given, 2 * given], op=op, prescale_factor=2.0)
    assert_close(both[0].asnumpy(), 2 * own_rows, hvd.size())
    assert_close(both[1].asnumpy(), 4 * own_rows, hvd.size())
    with pytest.raises(AssertionError):
        hvd.reducescatter(given, op=hvd.Max)
    with mx.util.np_shape(True), pytest.raises(ValueError, match="at least one dimension"):
        hvd.reducescatter(as_np(np.ones((), "float32")))


def test_operations_wait_for_what_computes_their_arrays_and_for_nothing_else():
    base = mx.nd.ones((64, 64)) / 64
    results = []
    for i in range(50):
        computed = base
        for _ in range(3):
            computed = mx.nd.dot(computed, base)
        results.append(hvd.allreduce(computed * (i + hvd.rank()), op=hvd.Sum, priority=-i) * 2)
    for i, result in enumerate(results):
        total = sum(i + rank for rank in range(hvd.size()))
        np.testing.assert_allclose(result.asnumpy(), np.full((64, 64), 2 * total / 64), rtol=1e-5)


def test_a_chain_in_place_is_run_in_order():
    array = mx.nd.ones((1000,))
    for _ in range(10):
        hvd.allreduce_(array, op=hvd.Sum, name="chain")
        array += 1
    value = 1
    for _ in range(10):
        value = value * hvd.size() + 1
    np.testing.assert_allclose(array.asnumpy(), value, rtol=1e-6)


def test_calls_of_one_name_come_one_after_the_other():
    results = [hvd.allreduce(mx.nd.ones((n + 1,)) * n, name="same") for n in range(100)]
    for n, result in enumerate(results):
        assert result.asnumpy().tolist() == [n] * (n + 1)


def test_an_array_may_be_let_go_of_at_once():
    for n in range(20):
        hvd.allreduce_(mx.nd.ones((10_000,)) * n, op=hvd.Sum, name="dropped")
    mx.nd.waitall()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduce", [hvd.allreduce, hvd.grouped_allreduce])
def test_memory_of_results_is_used_again_for_others_of_new_names(reduce, kind):
    array = kind(np.ones(1_000_000, np.float32))
    is_grouped = reduce is hvd.grouped_allreduce
    before = resident()
    for _ in range(200):
        result = reduce([array] if is_grouped else array)
        (result[0] if is_grouped else result).wait_to_read()
    assert resident() - before < 0.5 * 200 * array.size * 4


def test_process_sets():
    even = hvd.add_process_set(range(0, hvd.size(), 2)) if hvd.size() > 2 else None
    if even is None:
        pytest.skip("needs three ranks")
    ones = mx.nd.ones((4, 2)) * (hvd.rank() + 1)
    if even.included():
        ranks = range(0, hvd.size(), 2)
        total = sum(rank + 1 for rank in ranks)
        summed = hvd.allreduce(ones, op=hvd.Sum, process_set=even)
        assert summed.asnumpy().tolist() == [[total] * 2] * 4
        assert hvd.allgather(ones, process_set=even).shape == (4 * len(ranks), 2)
        rows = hvd.reducescatter(ones, op=hvd.Sum, process_set=even)
        assert rows.shape[0] == len(np.array_split(np.arange(4), len(ranks))[even.rank()])
        from_last = hvd.broadcast(ones, ranks[-1], process_set=even)
        assert from_last.asnumpy().tolist() == [[ranks[-1] + 1] * 2] * 4
    else:
        with pytest.raises(ValueError, match="not in"):
            hvd.allreduce(ones, process_set=even)
    mx.nd.waitall()
    hvd.allgather(ones)
    hvd.remove_process_set(even)


def test_a_set_with_the_number_of_another_is_refused(two_ranks):
    registered = hvd.add_process_set([0])
    for number in (registered.process_set_id, 0, 99):
        fake = hvd.ProcessSet([0, 5])
        fake.process_set_id = number
        refused = pytest.raises(ValueError, match="is not registered, and its number is that of")
        with refused:
            hvd.allreduce(mx.nd.ones((2,)), process_set=fake)
        optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(), process_set=fake)
        weight, gradient = mx.nd.ones((2,)), mx.nd.ones((2,))
        with refused:
            optimizer.update(0, weight, gradient, None)
        param = mx.gluon.Parameter("weight", shape=(2,))
        param.initialize()
        trainer = hvd.DistributedTrainer([param], "sgd", process_set=fake)
        with mx.autograd.record():
            loss = param.data().sum()
        loss.backward()
        with refused:
            trainer.step(1)
    hvd.remove_process_set(registered)


def test_results_are_on_the_device_of_what_was_given():
    given = mx.nd.ones((hvd.size(), 2), ctx=mx.cpu(1))
    rows, received = hvd.alltoall(given, [1] * hvd.size())
    results = [hvd.allreduce(given), hvd.allgather(given), rows, received]
    results += hvd.grouped_allgather([given])
    assert {str(each.context) for each in results} == {"cpu(1)"}


def test_a_group_may_come_from_a_generator():
    results = hvd.grouped_allreduce_((mx.nd.ones((n,)) for n in (1, 2)), op=hvd.Sum)
    assert [each.asnumpy().tolist() for each in results] == [[hvd.size()], [hvd.size()] * 2]


def test_objects():
    thing = {"rank": hvd.rank(), "text": "x" * hvd.rank()}
    last = hvd.size() - 1
    assert hvd.broadcast_object(thing, root_rank=last) == {"rank": last, "text": "x" * last}
    assert [one["rank"] for one in hvd.allgather_object(thing)] == list(range(hvd.size()))


def test_what_cannot_be_sent_is_said_at_once():
    ones = mx.nd.ones((3,))
    for wrong in ([1.0], np.ones(3), None):
        with pytest.raises(TypeError, match="array of MXNet"):
            hvd.allreduce(wrong)
    with pytest.raises(ValueError, match="row_sparse"):
        hvd.allreduce(mx.nd.ones((3, 2)).tostype("row_sparse"))
    with pytest.raises(TypeError, match="list of MXNet"):
        hvd.grouped_allreduce(ones)
    with pytest.raises(ValueError, match="root_rank is 99"):
        hvd.broadcast(ones, 99)
    with pytest.raises(ValueError, match="not a reduction"):
        hvd.allreduce(ones, op=17)
    with pytest.raises(TypeError, match="name"):
        hvd.allreduce(ones, name=3)
    with pytest.raises(ValueError, match="splits"):
        hvd.alltoall(ones, splits=[0.5])
    with pytest.raises(ValueError, match="one device"):
        hvd.grouped_allreduce([ones, mx.nd.ones((3,), ctx=mx.cpu(1))])
    assert hvd.allreduce(ones).asnumpy().tolist() == [1.0] * 3


def test_shapes_that_differ_are_an_error_on_every_rank(two_ranks):
    result = hvd.allreduce(mx.nd.ones((hvd.rank() + 1,)), name="differs")
    with pytest.raises(mx.MXNetError, match=r"'allreduce\.differs'.*rank 0") as caught:
        result.wait_to_read()
    assert isinstance(caught.value, HorovodInternalError)
    with pytest.raises(HorovodInternalError, match=r"'allgather\.differs'"):
        hvd.allgather(mx.nd.ones((2, hvd.rank() + 1)), name="differs")
    # The job goes on, also under that name.
    assert hvd.allreduce(mx.nd.ones((2,)), name="differs").asnumpy().tolist() == [1.0] * 2


def test_errors_of_alltoall_are_mxnets(two_ranks):
    """As in Horovod. Those of arguments are ValueErrors, too."""
    rows = mx.nd.ones((hvd.size() + 1, 2))
    for tensor, splits in (
        (rows, None),
        (rows, [2] * hvd.size()),
        (rows, [1] * (hvd.size() + 1)),
        (rows, [-1] * hvd.size()),
        (rows, [0.5] * hvd.size()),
        (rows, []),
        (rows, 3),
    ):
        with pytest.raises(mx.MXNetError) as caught:
            hvd.alltoall(tensor, splits)
        assert isinstance(caught.value, ValueError), caught.value
    differing = (
        mx.nd.ones((hvd.size(), 1 + hvd.rank())),
        mx.nd.ones((hvd.size(),), dtype=["float32", "int32"][hvd.rank() % 2]),
    )
    for tensor in differing:
        with pytest.raises(mx.MXNetError) as caught:
            hvd.alltoall(tensor, name="differs")
        assert isinstance(caught.value, HorovodInternalError)
    # A mistake of one rank.
    mine = [2 * hvd.size()] * hvd.size() if hvd.rank() == 0 else [1] * hvd.size()
    with pytest.raises(mx.MXNetError) as caught:
        hvd.alltoall(rows, mine, name="lone")
    assert isinstance(caught.value, ValueError) == (hvd.rank() == 0)
    assert hvd.alltoall(mx.nd.ones((hvd.size(),)), name="lone").shape == (hvd.size(),)


def test_a_mistake_of_one_rank_is_an_error_on_every_rank(two_ranks):
    if hvd.rank() == 0:
        with pytest.raises(TypeError):
            hvd.allreduce("nothing", name="lone")
    else:
        result = hvd.allreduce(mx.nd.ones((2,)), name="lone")
        with pytest.raises(HorovodInternalError, match=r"rank 0.*it takes an array"):
            result.wait_to_read()
    assert hvd.allreduce(mx.nd.ones((2,)), name="lone").asnumpy().tolist() == [1.0] * 2


def failed():
    """Returns an array whose computation fails: there is no such normal distribution."""
    return mx.nd.random.normal(0, -1, (2, 2))


@pytest.mark.parametrize("in_place", [False, True])
def test_an_array_that_could_not_be_computed_is_an_error_on_every_rank(two_ranks, in_place):
    array = failed() if hvd.rank() == 0 else mx.nd.ones((2, 2))
    result = (hvd.allreduce_ if in_place else hvd.allreduce)(array, name="failed")
    told = "allreduce of 'allreduce.failed': an MXNet operation that it depends on has failed"
    text = "scale" if hvd.rank() == 0 else told
    with pytest.raises(mx.MXNetError, match=text):
        result.wait_to_read()
    assert hvd.allreduce(mx.nd.ones((2,)), name="failed").asnumpy().tolist() == [1.0] * 2


def test_an_array_to_gather_that_could_not_be_computed(two_ranks):
    array = failed() if hvd.rank() == 0 else mx.nd.ones((2, 2))
    with pytest.raises(mx.MXNetError):
        hvd.allgather(array, name="failed")
    assert hvd.allgather(mx.nd.ones((1,)), name="failed").shape == (hvd.size(),)
