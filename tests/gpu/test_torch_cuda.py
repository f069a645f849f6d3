"""perseus.torch.horovod with tensors on GPUs: streams, memory, errors, process sets, training.

Tests that hold wherever the tensors are stand in tests/python/parallel, with the fixture `device`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import place
import pytest
import torch

import perseus.torch.horovod as hvd
from perseus_core import HorovodInternalError, NonFiniteError

DEVICE = place.device()


@pytest.fixture(autouse=True)
def ready() -> None:
    """Ranks draw the same random numbers."""
    torch.manual_seed(0)
    hvd.init()


def ones(*shape: int, **options) -> torch.Tensor:
    return torch.ones(shape, device=DEVICE, **options)


# ---- Process sets ---------------------------------------------------------------------------


def test_process_sets(two_ranks: None):
    """A set of its own for each rank, and one of two."""
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
def setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restarts the engine with a setting: the parameter is a variable and its value."""
    hvd.barrier()
    hvd.shutdown()
    with monkeypatch.context() as environment:
        environment.setenv(*request.param)
        hvd.init()
        yield
        hvd.barrier()
        hvd.shutdown()


@pytest.mark.parametrize("setting", [("PERSEUS_ALLREDUCE_NANCHECK", "raise")], indirect=True)
@pytest.mark.parametrize("elements", [1000, 2_000_000])
def test_nan_is_found_everywhere(elements: int, setting: None):
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
    """The input is computed late on it, and the result is used there; the host does not wait."""
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


@pytest.mark.gpu
@pytest.mark.parametrize("setting", [("PERSEUS_ASYNC_COMPLETION", "1")], indirect=True)
def test_a_host_that_runs_ahead_finds_the_same(setting: None):
    """Memory that it releases is reused at once, and so is the name."""
    mean = ones(300_000)
    for step in range(20):
        torch.cuda._sleep(2_000_000 * (1 + (step + hvd.rank()) % 3))
        total = hvd.allreduce(mean, op=hvd.Sum, name="ahead")
        mean = total / hvd.size()
        del total
        torch.full((300_000,), -1.0, device=DEVICE)
    hvd.barrier()
    assert mean.unique().tolist() == [1.0]


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
