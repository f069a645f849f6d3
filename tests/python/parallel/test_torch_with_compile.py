"""torch.compile: of models, and of functions that call collectives."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from twin_training import Parts, Run, everyone, inputs, momentum_sgd, same  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402

# PyTorch's own, while it compiles.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")


@pytest.fixture(autouse=True)
def compiler():
    hvd.init()
    if not hasattr(torch, "compile"):
        pytest.skip("this PyTorch has no torch.compile")
    dynamo = pytest.importorskip("torch._dynamo")
    if not dynamo.is_dynamo_supported():
        pytest.skip("this PyTorch cannot compile here")
    dynamo.reset()
    yield
    dynamo.reset()


def test_a_model():
    run = Run(Parts())
    compiled = torch.compile(run.model, backend="aot_eager")
    for step in range(3):
        run.optimizer.zero_grad()
        compiled(inputs(step, hvd.rank()), (0, 1, 2)).backward()
        run.optimizer.step()
        run.alone.zero_grad()
        for r in everyone():
            (run.reference(inputs(step, r), (0, 1, 2)) / hvd.size()).backward()
        run.alone.step()
    same(run.model, run.reference)


def test_an_optimizer_of_the_parameters_of_a_compiled_model():
    model = torch.compile(Parts().double(), backend="aot_eager")
    reference = Parts().double()
    optimizer = hvd.DistributedOptimizer(momentum_sgd(model.parameters()), model.named_parameters())
    alone = momentum_sgd(reference.parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    for step in range(2):
        optimizer.zero_grad()
        model(inputs(step, hvd.rank()), (0, 1, 2)).backward()
        optimizer.step()
        alone.zero_grad()
        for r in everyone():
            (reference(inputs(step, r), (0, 1, 2)) / hvd.size()).backward()
        alone.step()
    same(model, reference)


@pytest.mark.parametrize(
    "call, expected",
    [
        (lambda x: hvd.allreduce(x, op=hvd.Sum), lambda xs: sum(xs)),
        (lambda x: hvd.allreduce_(x.clone(), op=hvd.Sum), lambda xs: sum(xs)),
        (lambda x: hvd.grouped_allreduce([x], op=hvd.Sum)[0], lambda xs: sum(xs)),
        (lambda x: hvd.allgather(x), lambda xs: torch.cat(xs)),
        (lambda x: hvd.broadcast(x, 0), lambda xs: xs[0]),
        (
            lambda x: hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum)),
            lambda xs: sum(xs),
        ),
    ],
    ids=["allreduce", "allreduce_", "grouped", "allgather", "broadcast", "async"],
)
def test_a_collective_in_a_compiled_function(call, expected):
    """The graph is broken there; the collective itself runs as ever."""

    @torch.compile(backend="aot_eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        return call(x * 2) + 1

    for step in range(2):
        result = function(inputs(step, hvd.rank()))
        doubled = [2 * inputs(step, r) for r in everyone()]
        torch.testing.assert_close(result, expected(doubled) + 1)


def test_a_gradient_through_a_collective_in_a_compiled_function():
    @torch.compile(backend="aot_eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        return (hvd.allreduce(x * 2, op=hvd.Sum) * 3).sum()

    x = inputs(0, hvd.rank()).requires_grad_()
    function(x).backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 6.0 * hvd.size()))


@pytest.mark.skipif(
    torch.__version__.startswith("2.1."), reason="PyTorch 2.1 cannot compile a step of its own SGD"
)
def test_a_whole_step():
    run = Run(Parts())

    @torch.compile(backend="aot_eager")
    def train(x: torch.Tensor) -> torch.Tensor:
        run.optimizer.zero_grad()
        loss = run.model(x, (0, 1, 2))
        loss.backward()
        run.optimizer.step()
        return loss

    for step in range(4):
        train(inputs(step, hvd.rank()))
        run.alone.zero_grad()
        for r in everyone():
            (run.reference(inputs(step, r), (0, 1, 2)) / hvd.size()).backward()
        run.alone.step()
    same(run.model, run.reference)


def test_sync_batch_norm():
    torch.manual_seed(6)
    layer = hvd.SyncBatchNorm(4).double()
    plain = torch.nn.BatchNorm1d(4).double()
    compiled = torch.compile(layer, backend="aot_eager")
    out = compiled(inputs(0, hvd.rank()))
    whole = plain(torch.cat([inputs(0, r) for r in everyone()]))
    torch.testing.assert_close(out, whole.chunk(hvd.size())[hvd.rank()])
