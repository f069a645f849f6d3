"""Horovod's collectives for PyTorch against float64 references, wherever the tensors are."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from references import assert_close, rank_input, reduced

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402
from perseus_core import ReduceOp  # noqa: E402

FLOATS = ["float16", "bfloat16", "float32", "float64"]
REDUCIBLE = ["uint8", "int8", "int16", "int32", "int64", *FLOATS]
SHAPES = [(), (0,), (1,), (17,), (3, 5, 2), (5000,)]


pytestmark = pytest.mark.usefixtures("horovod")


def as_tensor(array, device) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32)).to(device, torch.bfloat16)
    return torch.tensor(array).to(device)


def as_array(tensor, device):
    """Returns it on the host, after checking that it is where the inputs are."""
    import ml_dtypes

    assert tensor.device == device
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.to(torch.float32).numpy().astype(ml_dtypes.bfloat16)
    return tensor.numpy()


def rank_inputs(shape, dtype):
    return [rank_input(rank, shape, dtype) for rank in range(hvd.size())]


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product])
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_allreduce_of_every_type(dtype, op, device):
    for shape in SHAPES:
        arrays = rank_inputs(shape, dtype)
        tensor = as_tensor(arrays[hvd.rank()], device)
        expected = reduced(arrays, ReduceOp(op))
        result = hvd.allreduce(tensor, op=op)
        assert result.dtype == tensor.dtype
        assert_close(as_array(result, device), expected, hvd.size())
        np.testing.assert_array_equal(as_array(tensor, device), arrays[hvd.rank()])
        assert hvd.allreduce_(tensor, op=op) is tensor
        assert_close(as_array(tensor, device), expected, hvd.size())


def test_allreduce_of_bool(device):
    own = torch.tensor([hvd.rank() == 0, False, True], device=device)
    assert hvd.allreduce(own, op=hvd.Max).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("elements", [100_003, 5_000_000])
def test_allreduce_of_large_tensors(dtype, elements, device):
    arrays = rank_inputs((elements,), dtype)
    tensor = as_tensor(arrays[hvd.rank()], device)
    hvd.allreduce_(tensor, op=hvd.Sum)
    assert_close(as_array(tensor, device), reduced(arrays, ReduceOp.SUM), hvd.size())


@pytest.mark.parametrize("dtype", FLOATS)
def test_tensors_that_begin_anywhere(dtype, device):
    """Parts of one allocation, side by side, in place: the bytes between them are not changed."""
    arrays = rank_inputs((4000,), dtype)
    whole = as_tensor(arrays[hvd.rank()], device)
    expected = reduced(arrays, ReduceOp.SUM)
    parts = [whole[1:100], whole[101:103], whole[104:1001], whole[1003:3999]]
    handles = [
        hvd.allreduce_async_(part, op=hvd.Sum, name=f"part.{i}") for i, part in enumerate(parts)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    for i in (0, 100, 103, 1001, 1002, 3999):
        expected[i] = arrays[hvd.rank()][i]
    assert_close(as_array(whole, device), expected, hvd.size())


def test_the_deprecated_average_argument(device):
    tensor = torch.full((3,), float(hvd.rank()), device=device)
    with pytest.warns(DeprecationWarning) as warned:
        total = hvd.allreduce(tensor, average=False)
        hvd.allreduce_(tensor.clone(), average=True)
    assert [warning.filename for warning in warned] == [__file__] * 2
    size = hvd.size()
    assert total.tolist() == [size * (size - 1) / 2] * 3
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hvd.allreduce(tensor).tolist() == [(size - 1) / 2] * 3


@pytest.mark.parametrize("view", ["transposed", "strided", "expanded"])
def test_tensors_that_are_not_contiguous(view, device):
    arrays = rank_inputs((6, 8), "float32")
    expected = reduced(arrays, ReduceOp.SUM)
    own = as_tensor(arrays[hvd.rank()], device)
    if view == "transposed":
        tensor, expected = own.t(), expected.T
    elif view == "strided":
        tensor, expected = own[::2, 1::3], expected[::2, 1::3]
    else:
        tensor, expected = own[:, :1].expand(6, 8), np.repeat(expected[:, :1], 8, axis=1)
    assert_close(as_array(hvd.allreduce(tensor, op=hvd.Sum), device), expected, hvd.size())
    if view != "expanded":
        assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
        assert_close(as_array(tensor, device), expected, hvd.size())


def test_a_result_is_where_its_input_is_whatever_the_default_device():
    class Own(torch.Tensor):
        pass

    for tensor in (torch.ones(3), torch.ones(3).as_subclass(Own)):
        with torch.device("meta"):
            result = hvd.allreduce(tensor, op=hvd.Sum)
        assert type(result) is torch.Tensor
        assert result.tolist() == [hvd.size()] * 3


def test_in_place_on_a_leaf_that_requires_grad(device):
    parameter = torch.nn.Parameter(torch.full((4,), float(hvd.rank()), device=device))
    hvd.allreduce_(parameter, op=hvd.Max)
    assert parameter.tolist() == [hvd.size() - 1.0] * 4
    assert parameter.is_leaf


@pytest.mark.parametrize("dtype", ["int32", *FLOATS])
def test_prescale_and_postscale(dtype, device):
    arrays = rank_inputs((500,), dtype)
    result = hvd.allreduce(
        as_tensor(arrays[hvd.rank()], device),
        op=hvd.Sum,
        prescale_factor=4.0,
        postscale_factor=0.25,
    )
    assert_close(as_array(result, device), reduced(arrays, ReduceOp.SUM), hvd.size() + 2)


def test_fp16_compression_gives_back_the_type(device):
    arrays = rank_inputs((100,), "float64")
    result = hvd.allreduce(
        as_tensor(arrays[hvd.rank()], device), op=hvd.Sum, compression=hvd.Compression.fp16
    )
    assert result.dtype == torch.float64
    assert (
        np.abs(as_array(result, device) - reduced(arrays, ReduceOp.SUM)).max() < 0.02 * hvd.size()
    )
    whole = torch.arange(4, device=device)
    assert hvd.allreduce(whole, op=hvd.Max, compression=hvd.Compression.fp16).dtype == torch.int64


@pytest.mark.parametrize("dtype", FLOATS)
def test_adasum_of_what_is_the_same_everywhere_is_it(dtype, device):
    same = as_tensor(rank_input(0, (300,), dtype), device)
    result = hvd.allreduce(same, op=hvd.Adasum)
    assert_close(as_array(result, device), as_array(same, device).astype(np.float64), 4)


def test_async_handles_poll_and_synchronize_once(device):
    tensor = torch.ones(100, device=device)
    handle = hvd.allreduce_async(tensor, op=hvd.Sum)
    assert isinstance(handle, int)
    assert hvd.poll(handle) in (True, False)
    result = hvd.synchronize(handle)
    assert torch.equal(result, torch.full((100,), float(hvd.size()), device=device))
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="was not created or has been cleared"):
        hvd.poll(handle)


def test_poll_is_true_before_synchronize_only_when_complete(device):
    if hvd.size() < 2:
        pytest.skip("needs a rank to wait for")
    if hvd.rank() == 0:
        handle = hvd.allreduce_async_(torch.ones(3, device=device), op=hvd.Sum, name="late")
        assert not hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async_(torch.ones(3, device=device), op=hvd.Sum, name="late")
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 3


def test_the_engine_keeps_tensors_that_python_dropped(device):
    handles = [
        hvd.allreduce_async(torch.ones(200_000, device=device), op=hvd.Sum) for _ in range(30)
    ]
    others = [torch.full((200_000,), 7.0, device=device) for _ in range(30)]
    for handle in handles:
        assert hvd.synchronize(handle).unique().tolist() == [hvd.size()]
    assert all(other.unique().tolist() == [7.0] for other in others)


@pytest.mark.parametrize("form", [list, tuple])
def test_grouped_allreduce(form, device):
    groups = [rank_inputs(shape, "float32") for shape in [(3,), (), (1000,), (0,), (2, 2)]]
    tensors = form(as_tensor(group[hvd.rank()], device) for group in groups)
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    for result, group in zip(results, groups, strict=True):
        assert_close(as_array(result, device), reduced(group, ReduceOp.SUM), hvd.size())
    handle = hvd.grouped_allreduce_async_(tensors, op=hvd.Sum, name="in.place")
    assert isinstance(handle, int)
    assert hvd.synchronize(handle) is tensors
    for tensor, group in zip(tensors, groups, strict=True):
        assert_close(as_array(tensor, device), reduced(group, ReduceOp.SUM), hvd.size())


def test_grouped_allreduce_of_mixed_types(device):
    tensors = [
        torch.ones(3, dtype=torch.float64, device=device),
        torch.ones(2, dtype=torch.int32, device=device),
    ]
    results = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    assert results[0].tolist() == [hvd.size()] * 3
    assert results[1].tolist() == [hvd.size()] * 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_grouped_allreduce_of_many(dtype, device):
    shapes = [(3,), (), (1000,), (0,), (2, 2), (70_001,), *[(i,) for i in range(1, 140)]]
    groups = [rank_inputs(shape, dtype) for shape in shapes]
    tensors = [as_tensor(group[hvd.rank()], device) for group in groups]
    for results in (
        hvd.grouped_allreduce(tensors, op=hvd.Sum),
        hvd.grouped_allreduce_(tensors, op=hvd.Sum),
    ):
        for result, group in zip(results, groups, strict=True):
            assert_close(as_array(result, device), reduced(group, ReduceOp.SUM), hvd.size())


def test_many_at_once_of_all_sizes_and_types(device):
    """More than one merged buffer, and more than one shard."""
    work = [
        (rank_inputs((elements,), dtype), f"{dtype}.{elements}")
        for dtype in ("float32", "float16", "int32")
        for elements in (1, 7, 63, 1000, 4096, 30_011, 300_000, 1_500_000)
    ]
    tensors = [as_tensor(arrays[hvd.rank()], device) for arrays, _ in work]
    for _ in range(3):
        inputs = [tensor.clone() for tensor in tensors]
        handles = [
            hvd.allreduce_async_(tensor, op=hvd.Sum, name=name)
            for tensor, (_, name) in zip(inputs, work, strict=True)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        for tensor, (arrays, _) in zip(inputs, work, strict=True):
            assert_close(as_array(tensor, device), reduced(arrays, ReduceOp.SUM), hvd.size())


@pytest.mark.parametrize("dtype", [*REDUCIBLE, "bool"])
def test_broadcast(dtype, device):
    for root in range(hvd.size()):
        arrays = rank_inputs((4, 5), dtype)
        tensor = as_tensor(arrays[hvd.rank()], device)
        result = hvd.broadcast(tensor, root)
        np.testing.assert_array_equal(as_array(result, device), arrays[root])
        np.testing.assert_array_equal(as_array(tensor, device), arrays[hvd.rank()])
        assert hvd.broadcast_(tensor.t(), root).shape == (5, 4)
        np.testing.assert_array_equal(as_array(tensor, device), arrays[root])


@pytest.mark.parametrize("dtype", [*REDUCIBLE, "bool"])
def test_allgather_of_uneven_parts(dtype, device):
    arrays = [rank_input(rank, ((rank * 3 + 1) % 4, 5), dtype) for rank in range(hvd.size())]
    result = hvd.allgather(as_tensor(arrays[hvd.rank()], device))
    np.testing.assert_array_equal(as_array(result, device), np.concatenate(arrays))


def test_allgather_of_nothing(device):
    result = hvd.allgather(torch.empty(0, 3, device=device))
    assert (result.shape, result.device) == ((0, 3), device)


def test_grouped_allgather(device):
    rank, size = hvd.rank(), hvd.size()
    first, second = hvd.grouped_allgather(
        [torch.full((rank, 2), rank, device=device), torch.tensor([rank], device=device)]
    )
    assert first.shape == (size * (size - 1) // 2, 2)
    assert second.tolist() == list(range(size))


@pytest.mark.parametrize("kind", [list, torch.tensor, np.array])
def test_alltoall_with_splits(kind, device):
    size, rank = hvd.size(), hvd.rank()
    splits = [(rank + to) % 3 for to in range(size)]
    rows = torch.full((sum(splits), 2), rank, device=device)
    output, received = hvd.alltoall(rows, splits=kind(splits))
    assert (received.dtype, output.device) == (torch.int32, device)
    assert received.tolist() == [(sender + rank) % 3 for sender in range(size)]
    expected = [sender for sender in range(size) for _ in range((sender + rank) % 3)]
    assert output[:, 0].tolist() == expected


def test_alltoall_in_equal_parts_gives_the_tensor_alone(device):
    output = hvd.alltoall(torch.arange(hvd.size(), device=device))
    assert output.tolist() == [hvd.rank()] * hvd.size()
    handle = hvd.alltoall_async(torch.arange(hvd.size(), device=device))
    output, received = hvd.synchronize(handle)
    assert received.tolist() == [1] * hvd.size()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("dtype", ["int32", "int64", *FLOATS])
def test_reducescatter(dtype, op, device):
    for rows in (0, 1, 7, 64):
        arrays = rank_inputs((rows, 3), dtype)
        result = hvd.reducescatter(as_tensor(arrays[hvd.rank()], device), op=op)
        own = np.array_split(reduced(arrays, ReduceOp(op)), hvd.size())[hvd.rank()]
        assert_close(as_array(result, device), own, hvd.size())


def test_grouped_reducescatter(device):
    size, rank = hvd.size(), hvd.rank()
    results = hvd.grouped_reducescatter(
        [torch.ones(size, device=device), torch.ones(2 * size, 3, device=device)], op=hvd.Sum
    )
    assert results[0].tolist() == [size]
    assert results[1].tolist() == [[size] * 3] * 2
    assert rank < size


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_sparse_allreduce(op, device):
    rank, size = hvd.rank(), hvd.size()
    dense = torch.zeros(6, 2, device=device)
    dense[rank % 6] = rank + 1.0
    result = hvd.sparse_allreduce_async(dense.to_sparse(1), name="sparse", op=op)()
    expected = torch.zeros(6, 2, device=device)
    for other in range(size):
        expected[other % 6] += other + 1.0
    if op == hvd.Average:
        expected /= size
    torch.testing.assert_close(result.to_dense(), expected)


def test_join_with_uneven_steps_returns_the_last_rank(device):
    for step in range(hvd.rank() + 1):
        result = hvd.allreduce(torch.ones(3, device=device), op=hvd.Sum, name=f"uneven.{step}")
        assert result.tolist() == [hvd.size() - step] * 3
    last = hvd.join()
    assert hvd.allgather(torch.tensor([last], device=device)).tolist() == [last] * hvd.size()
