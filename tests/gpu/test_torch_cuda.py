"""perseus.torch.horovod with tensors on GPUs, against float64 references on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import place
import pytest
import torch
from references import assert_close, rank_input, reduced

import perseus.torch.horovod as hvd
from perseus_core import HorovodInternalError, NonFiniteError, ReduceOp

DEVICE = place.device()
FLOATS = ["float16", "bfloat16", "float32", "float64"]
REDUCIBLE = ["uint8", "int8", "int16", "int32", "int64", *FLOATS]
SHAPES = [(), (0,), (1,), (17,), (3, 5, 2), (5000,)]


@pytest.fixture(autouse=True)
def ready() -> None:
    """Ranks draw the same random numbers."""
    torch.manual_seed(0)
    hvd.init()


def as_tensor(array) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32)).to(DEVICE, torch.bfloat16)
    return torch.tensor(array).to(DEVICE)


def as_array(tensor: torch.Tensor):
    """On the host; the tensor has to be where the inputs are."""
    import ml_dtypes

    assert tensor.device == DEVICE
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.to(torch.float32).numpy().astype(ml_dtypes.bfloat16)
    return tensor.numpy()


def rank_inputs(shape, dtype):
    return [rank_input(rank, shape, dtype) for rank in range(hvd.size())]


def ones(*shape: int, **options) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE, **options)


# ---- Operations -----------------------------------------------------------------------------


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product])
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_allreduce_of_every_type(dtype, op):
    for shape in SHAPES:
        arrays = rank_inputs(shape, dtype)
        tensor = as_tensor(arrays[hvd.rank()])
        expected = reduced(arrays, ReduceOp(op))
        result = hvd.allreduce(tensor, op=op)
        assert result.dtype == tensor.dtype
        assert_close(as_array(result), expected, hvd.size())
        np.testing.assert_array_equal(as_array(tensor), arrays[hvd.rank()])
        assert hvd.allreduce_(tensor, op=op) is tensor
        assert_close(as_array(tensor), expected, hvd.size())


def test_allreduce_of_bool():
    own = torch.tensor([hvd.rank() == 0, False, True], device=DEVICE)
    assert hvd.allreduce(own, op=hvd.Max).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("elements", [100_003, 5_000_000])
def test_allreduce_of_large_tensors(dtype, elements):
    arrays = rank_inputs((elements,), dtype)
    tensor = as_tensor(arrays[hvd.rank()])
    hvd.allreduce_(tensor, op=hvd.Sum)
    assert_close(as_array(tensor), reduced(arrays, ReduceOp.SUM), hvd.size())


@pytest.mark.parametrize("dtype", FLOATS)
def test_tensors_that_begin_anywhere(dtype):
    """As parts of one allocation, side by side, in place: what lies between is left alone."""
    arrays = rank_inputs((4000,), dtype)
    whole = as_tensor(arrays[hvd.rank()])
    expected = reduced(arrays, ReduceOp.SUM)
    parts = [whole[1:100], whole[101:103], whole[104:1001], whole[1003:3999]]
    handles = [
        hvd.allreduce_async_(part, op=hvd.Sum, name=f"part.{i}") for i, part in enumerate(parts)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    for i in (0, 100, 103, 1001, 1002, 3999):
        expected[i] = arrays[hvd.rank()][i]
    assert_close(as_array(whole), expected, hvd.size())


@pytest.mark.parametrize("view", ["transposed", "strided", "expanded"])
def test_tensors_that_are_not_contiguous(view):
    arrays = rank_inputs((6, 8), "float32")
    expected = reduced(arrays, ReduceOp.SUM)
    own = as_tensor(arrays[hvd.rank()])
    if view == "transposed":
        tensor, expected = own.t(), expected.T
    elif view == "strided":
        tensor, expected = own[::2, 1::3], expected[::2, 1::3]
    else:
        tensor, expected = own[:, :1].expand(6, 8), np.repeat(expected[:, :1], 8, axis=1)
    assert_close(as_array(hvd.allreduce(tensor, op=hvd.Sum)), expected, hvd.size())
    if view != "expanded":
        assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
        assert_close(as_array(tensor), expected, hvd.size())


@pytest.mark.parametrize("dtype", ["int32", *FLOATS])
def test_prescale_and_postscale(dtype):
    arrays = rank_inputs((500,), dtype)
    result = hvd.allreduce(
        as_tensor(arrays[hvd.rank()]), op=hvd.Sum, prescale_factor=4.0, postscale_factor=0.25
    )
    assert_close(as_array(result), reduced(arrays, ReduceOp.SUM), hvd.size() + 2)


def test_fp16_compression_gives_back_the_type():
    arrays = rank_inputs((100,), "float64")
    result = hvd.allreduce(
        as_tensor(arrays[hvd.rank()]), op=hvd.Sum, compression=hvd.Compression.fp16
    )
    assert result.dtype == torch.float64
    assert np.abs(as_array(result) - reduced(arrays, ReduceOp.SUM)).max() < 0.02 * hvd.size()


@pytest.mark.parametrize("dtype", FLOATS)
def test_adasum_of_what_is_the_same_everywhere_is_it(dtype):
    same = as_tensor(rank_input(0, (300,), dtype))
    result = hvd.allreduce(same, op=hvd.Adasum)
    assert_close(as_array(result), as_array(same).astype(np.float64), 4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_grouped_allreduce(dtype):
    shapes = [(3,), (), (1000,), (0,), (2, 2), (70_001,), *[(i,) for i in range(1, 140)]]
    groups = [rank_inputs(shape, dtype) for shape in shapes]
    tensors = [as_tensor(group[hvd.rank()]) for group in groups]
    for results in (
        hvd.grouped_allreduce(tensors, op=hvd.Sum),
        hvd.grouped_allreduce_(tensors, op=hvd.Sum),
    ):
        for result, group in zip(results, groups, strict=True):
            assert_close(as_array(result), reduced(group, ReduceOp.SUM), hvd.size())


def test_grouped_allreduce_of_mixed_types():
    tensors = [ones(3, dtype=torch.float64), ones(2, dtype=torch.int32)]
    results = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    assert results[0].tolist() == [hvd.size()] * 3
    assert results[1].tolist() == [hvd.size()] * 2


def test_many_at_once_of_all_sizes_and_types():
    """More than one merged buffer, and more than one shard."""
    work = [
        (rank_inputs((elements,), dtype), f"{dtype}.{elements}")
        for dtype in ("float32", "float16", "int32")
        for elements in (1, 7, 63, 1000, 4096, 30_011, 300_000, 1_500_000)
    ]
    tensors = [as_tensor(arrays[hvd.rank()]) for arrays, _ in work]
    for _ in range(3):
        inputs = [tensor.clone() for tensor in tensors]
        handles = [
            hvd.allreduce_async_(tensor, op=hvd.Sum, name=name)
            for tensor, (_, name) in zip(inputs, work, strict=True)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        for tensor, (arrays, _) in zip(inputs, work, strict=True):
            assert_close(as_array(tensor), reduced(arrays, ReduceOp.SUM), hvd.size())


@pytest.mark.parametrize("dtype", [*REDUCIBLE, "bool"])
def test_broadcast(dtype):
    for root in range(hvd.size()):
        arrays = rank_inputs((4, 5), dtype)
        tensor = as_tensor(arrays[hvd.rank()])
        np.testing.assert_array_equal(as_array(hvd.broadcast(tensor, root)), arrays[root])
        np.testing.assert_array_equal(as_array(tensor), arrays[hvd.rank()])
        assert hvd.broadcast_(tensor.t(), root).shape == (5, 4)
        np.testing.assert_array_equal(as_array(tensor), arrays[root])


@pytest.mark.parametrize("dtype", [*REDUCIBLE, "bool"])
def test_allgather_of_uneven_parts(dtype):
    arrays = [rank_input(rank, ((rank * 3 + 1) % 4, 5), dtype) for rank in range(hvd.size())]
    result = hvd.allgather(as_tensor(arrays[hvd.rank()]))
    np.testing.assert_array_equal(as_array(result), np.concatenate(arrays))


def test_allgather_of_nothing():
    result = hvd.allgather(torch.empty(0, 3, device=DEVICE))
    assert result.shape == (0, 3)
    assert result.device == DEVICE


def test_grouped_allgather():
    rank, size = hvd.rank(), hvd.size()
    own = [torch.full((rank, 2), rank, device=DEVICE), torch.tensor([rank], device=DEVICE)]
    first, second = hvd.grouped_allgather(own)
    assert first.shape == (size * (size - 1) // 2, 2)
    assert second.tolist() == list(range(size))


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_alltoall_with_splits(kind):
    size, rank = hvd.size(), hvd.rank()
    splits = [(rank + to) % 3 for to in range(size)]
    rows = torch.full((sum(splits), 2), rank, device=DEVICE)
    output, received = hvd.alltoall(rows, splits=kind(splits))
    assert output.device == DEVICE
    assert received.tolist() == [(sender + rank) % 3 for sender in range(size)]
    expected = [sender for sender in range(size) for _ in range((sender + rank) % 3)]
    assert output[:, 0].tolist() == expected


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("dtype", ["int32", "int64", *FLOATS])
def test_reducescatter(dtype, op):
    for rows in (0, 1, 7, 64):
        arrays = rank_inputs((rows, 3), dtype)
        result = hvd.reducescatter(as_tensor(arrays[hvd.rank()]), op=op)
        own = np.array_split(reduced(arrays, ReduceOp(op)), hvd.size())[hvd.rank()]
        assert_close(as_array(result), own, hvd.size())


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_sparse_allreduce(op):
    rank, size = hvd.rank(), hvd.size()
    dense = torch.zeros(6, 2, device=DEVICE)
    dense[rank % 6] = rank + 1.0
    result = hvd.sparse_allreduce_async(dense.to_sparse(1), name="sparse", op=op)()
    expected = torch.zeros(6, 2, device=DEVICE)
    for other in range(size):
        expected[other % 6] += other + 1.0
    if op == hvd.Average:
        expected /= size
    torch.testing.assert_close(result.to_dense(), expected)


def test_join_with_uneven_steps_returns_the_last_rank():
    for step in range(hvd.rank() + 1):
        result = hvd.allreduce(ones(3), op=hvd.Sum, name=f"uneven.{step}")
        assert result.tolist() == [hvd.size() - step] * 3
    last = hvd.join()
    assert hvd.allgather(torch.tensor([last], device=DEVICE)).tolist() == [last] * hvd.size()


def test_process_sets(two_ranks: None):
    """One of its own for each rank, and one of two."""
    size = hvd.size()
    hvd.barrier()
    hvd.shutdown()
    alone = [hvd.ProcessSet([rank]) for rank in range(size)]
    pair = hvd.ProcessSet([0, size - 1]) if size > 2 else hvd.global_process_set
    hvd.init(process_sets=[*alone, *([pair] if size > 2 else [])])
    own = torch.full((1000,), hvd.rank() + 1.0, device=DEVICE)
    kept = hvd.allreduce(own, op=hvd.Sum, process_set=alone[hvd.rank()])
    torch.testing.assert_close(kept, own)
    if pair.included():
        total = hvd.allreduce(own, op=hvd.Sum, process_set=pair)
        torch.testing.assert_close(total, torch.full_like(own, 1.0 + hvd.size()))
    hvd.barrier()
    hvd.shutdown()


# ---- Errors -----------------------------------------------------------------------------------


def test_shapes_that_differ_are_an_error_everywhere(two_ranks: None):
    with pytest.raises(HorovodInternalError, match="shape"):
        hvd.allreduce(ones(3 + hvd.rank() % 2), op=hvd.Sum, name="shapes")
    assert hvd.allreduce(ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3


@pytest.mark.gpu
def test_devices_that_differ_are_an_error_everywhere(two_ranks: None):
    where = DEVICE if hvd.rank() == 0 else "cpu"
    with pytest.raises(HorovodInternalError):
        hvd.allreduce(torch.ones(3, device=where), op=hvd.Sum, name="devices")
    assert hvd.allreduce(ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3


@pytest.mark.gpu
def test_a_graph_that_is_captured_is_refused():
    tensor = ones(100)
    hvd.allreduce(tensor, op=hvd.Sum)
    torch.cuda.synchronize()
    refused = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        doubled = tensor * 2
        try:
            hvd.allreduce_(doubled, op=hvd.Sum, name="captured")
        except Exception as error:
            refused = error
    assert refused is not None
    assert "captured" in str(refused)
    graph.replay()
    assert doubled.tolist() == [2.0] * 100
    assert hvd.allreduce(tensor, op=hvd.Sum).tolist() == [hvd.size()] * 100


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    hvd.barrier()
    hvd.shutdown()
    with monkeypatch.context() as environment:
        environment.setenv("PERSEUS_ALLREDUCE_NANCHECK", "raise")
        hvd.init()
        yield
        hvd.barrier()
        hvd.shutdown()


@pytest.mark.parametrize("elements", [1000, 2_000_000])
def test_nan_is_found_everywhere(elements: int, raising: None):
    tensor = ones(elements)
    assert hvd.allreduce(tensor, op=hvd.Sum, name="good")[0].item() == hvd.size()
    if hvd.rank() == hvd.size() - 1:
        tensor[elements // 2] = float("nan")
    with pytest.raises(NonFiniteError, match=rf"bad.*element {elements // 2}\b"):
        hvd.allreduce(tensor, op=hvd.Sum, name="bad")
    assert hvd.allreduce(ones(5), op=hvd.Sum, name="good.too").tolist() == [hvd.size()] * 5


# ---- Streams and memory -----------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_stream_of_the_callers():
    """The input is made late on it, and the result is used there, with no wait of the host."""
    for turn in range(5):
        stream = torch.cuda.Stream(DEVICE)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # some 10 ms
            late = ones(300_000) * (hvd.rank() + turn)
            total = hvd.allreduce(late, op=hvd.Sum)
            twice = total * 2
        stream.synchronize()
        expected = 2.0 * sum(rank + turn for rank in range(hvd.size()))
        assert twice.unique().tolist() == [expected]


@pytest.mark.gpu
def test_several_streams_at_once():
    streams = [torch.cuda.Stream(DEVICE) for _ in range(4)]
    started = []
    for i, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000 * (1 + (i + hvd.rank()) % 4))
            started.append(
                hvd.allreduce_async_(ones(200_000) * (i + 1), op=hvd.Sum, name=f"stream.{i}")
            )
    for i in reversed(range(4)):
        with torch.cuda.stream(streams[i]):
            result = hvd.synchronize(started[i])
            assert result.unique().tolist() == [(i + 1.0) * hvd.size()]


@pytest.mark.gpu
def test_a_result_is_there_for_every_stream():
    stream = torch.cuda.Stream(DEVICE)
    with torch.cuda.stream(stream):
        handle = hvd.allreduce_async(ones(500_000), op=hvd.Sum)
    total = hvd.synchronize(handle)
    assert (total + 1).unique().tolist() == [hvd.size() + 1.0]


def test_tensors_that_python_dropped_are_kept():
    handles = [hvd.allreduce_async(ones(200_000), op=hvd.Sum) for _ in range(30)]
    others = [torch.full((200_000,), 7.0, device=DEVICE) for _ in range(30)]
    for handle in handles:
        assert hvd.synchronize(handle).unique().tolist() == [hvd.size()]
    assert all(other.unique().tolist() == [7.0] for other in others)


@pytest.mark.gpu
def test_memory_does_not_grow():
    tensor = ones(1_000_000)

    def step() -> None:
        hvd.allreduce_(tensor, op=hvd.Average, name="steady")
        hvd.allgather(ones(1000), name="gathered")

    for _ in range(20):
        step()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    hvd.barrier()
    for _ in range(200):
        step()
    torch.cuda.synchronize()
    hvd.barrier()
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20


# ---- Training ---------------------------------------------------------------------------------


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 3)).double().to(DEVICE)


def make_data(steps: int, passes: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels [step, pass, rank, sample], the same on all ranks."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(steps, passes, hvd.size(), 4, 8, generator=generator).double()
    labels = torch.randint(0, 3, inputs.shape[:4], generator=generator)
    return inputs.to(DEVICE), labels.to(DEVICE)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
}


def train(model, optimizer, steps: int, passes: int, ranks: list[int], share: float) -> None:
    inputs, labels = make_data(steps, passes)
    for step in range(steps):
        optimizer.zero_grad()
        for p in range(passes):
            for r in ranks:
                outputs = model(inputs[step, p, r])
                (torch.nn.functional.cross_entropy(outputs, labels[step, p, r]) * share).backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "options",
    [{}, {"groups": 2}, {"backward_passes_per_step": 2}, {"gradient_predivide_factor": 2.0}],
    ids=lambda options: ",".join(options) or "plain",
)
def test_training_equals_one_process_on_all_data(name, options):
    passes = options.get("backward_passes_per_step", 1)
    alone = make_model()
    everyone = list(range(hvd.size()))
    train(alone, OPTIMIZERS[name](alone.parameters()), 5, passes, everyone, 1 / hvd.size())
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[name](model.parameters()), model.named_parameters(), **options
    )
    train(model, optimizer, 5, passes, [hvd.rank()], 1.0)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_training_of_sparse_gradients(sparse_as_dense):
    torch.manual_seed(1)
    model = torch.nn.Embedding(6, 3, sparse=True).to(DEVICE)
    alone = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        sparse_as_dense=sparse_as_dense,
    )
    own = torch.optim.SGD(alone.parameters(), lr=0.1)

    def loss(of: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
        indices = torch.tensor([(step + rank) % 6, (2 * step) % 6], device=DEVICE)
        return of(indices).square().sum()

    for step in range(5):
        optimizer.zero_grad()
        loss(model, step, hvd.rank()).backward()
        optimizer.step()
        own.zero_grad()
        for rank in range(hvd.size()):
            (loss(alone, step, rank) / hvd.size()).backward()
        own.step()
        torch.testing.assert_close(model.weight, alone.weight)


def test_half_precision_with_a_gradient_scaler():
    model = torch.nn.Linear(64, 64).to(DEVICE)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    scaler = torch.amp.GradScaler(DEVICE.type)
    inputs = torch.randn(32, 64, device=DEVICE)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            loss = (model(inputs) - inputs).square().mean()
        scaler.scale(loss).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    gathered = hvd.allgather(model.weight.detach().unsqueeze(0))
    for other in gathered:
        torch.testing.assert_close(other, model.weight.detach(), rtol=0, atol=0)


def test_gradients_of_the_collectives():
    size, rank = hvd.size(), hvd.rank()

    def leaf(*shape: int) -> torch.Tensor:
        return torch.full(shape, rank + 1.0, device=DEVICE, requires_grad=True)

    tensor = leaf(3, 2)
    hvd.allreduce(tensor, op=hvd.Sum).sum().backward()
    assert tensor.grad.tolist() == [[float(size)] * 2] * 3
    tensors = [leaf(3), leaf(2, 2)]
    first, second = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    (first.sum() + 2 * second.sum()).backward()
    assert tensors[1].grad.tolist() == [[2.0 * size] * 2] * 2
    tensor = leaf(rank + 1, 2)
    hvd.allgather(tensor).sum().backward()
    assert tensor.grad.tolist() == [[1.0] * 2] * (rank + 1)
    tensor = leaf(3)
    hvd.broadcast(tensor, size - 1).sum().backward()
    assert tensor.grad.tolist() == [1.0 if rank == size - 1 else 0.0] * 3


@pytest.mark.parametrize("dims", [2, 4])
def test_sync_batch_norm_equals_batch_norm_of_one_process(dims):
    generator = torch.Generator().manual_seed(dims)
    shape = [4, 2][: dims - 2]
    parts = [
        torch.randn([2 + 3 * rank, 3, *shape], generator=generator).double().to(DEVICE)
        for rank in range(hvd.size())
    ]
    sync = hvd.SyncBatchNorm(3).double().to(DEVICE)
    layer = {2: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[dims]
    reference = layer(3).double().to(DEVICE)
    own = parts[hvd.rank()].clone().requires_grad_()
    everything = torch.cat(parts).requires_grad_()
    output, expected = sync(own), reference(everything)
    begin = sum(len(part) for part in parts[: hvd.rank()])
    mine = slice(begin, begin + len(own))
    torch.testing.assert_close(output, expected[mine], rtol=1e-10, atol=1e-10)
    factors = torch.arange(everything.numel(), device=DEVICE).double().view_as(everything).cos()
    (output * factors[mine]).sum().backward()
    (expected * factors).sum().backward()
    torch.testing.assert_close(own.grad, everything.grad[mine], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(sync.running_var, reference.running_var)


def test_state_is_made_the_same_everywhere():
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1))
    if hvd.rank() == 0:
        model(torch.randn(4, 5, device=DEVICE)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    assert len(moments) == 4
    assert all(moment.device == DEVICE for moment in moments)
    for tensor in [*model.state_dict().values(), *moments]:
        for other in hvd.allgather(tensor.detach().reshape(1, -1)):
            torch.testing.assert_close(other, tensor.detach().reshape(-1), rtol=0, atol=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    shared = hvd.broadcast_object({"of": hvd.rank(), "at": ones(2).cpu()}, root_rank=0)
    assert shared["of"] == 0
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
