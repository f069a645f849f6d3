"""Pipelines beside data parallelism, and weights that stages share."""

from __future__ import annotations

import copy
import functools

import pytest

torch = pytest.importorskip("torch")
from pipeline_models import (  # noqa: E402
    WIDTH,
    in_one_process,
    make_batch,
    make_model,
    make_pipeline,
    require_gradients,
    stages_of,
)

import perseus.torch.horovod as hvd  # noqa: E402
from perseus.pipeline import Pipeline  # noqa: E402
from perseus.pipeline.schedules import SCHEDULES  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def dynamic_sets():
    hvd.init(process_sets="dynamic")
    torch.manual_seed(0)


def replicas():
    return 2 if hvd.size() % 2 == 0 else 1


def part_of(batch, mesh):
    """Returns the part of a batch that this rank's replica works on."""
    return [tensor.chunk(mesh[0])[hvd.rank() // mesh[1]] for tensor in batch]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_replicas_average_their_gradients(schedule):
    mesh = (replicas(), hvd.size() // replicas())
    stages = stages_of(schedule, mesh[1])
    microbatches = 2 * mesh[1]
    # Replicas begin with the first one's values.
    model = make_model(2 * stages, seed=hvd.rank() // mesh[1])
    pipeline = make_pipeline(model, schedule, microbatches, ranks=mesh[1], mesh=mesh)
    assert (pipeline.data_set is None) == (mesh[0] == 1)
    optimizer = pipeline.distributed(torch.optim.SGD(pipeline.parameters(), lr=0.1))
    whole = make_model(2 * stages)
    for seed in range(3):
        batch = make_batch(16 * mesh[0], seed)
        expected_loss, expected = in_one_process(whole, *batch)
        optimizer.zero_grad()
        loss = pipeline.step(*part_of(batch, mesh))
        assert abs(loss - expected_loss) < 1e-12
        optimizer.step()
        require_gradients(pipeline, expected)
        for name, one in whole.named_parameters():
            one.data -= 0.1 * expected[name]
    for name, one in pipeline.named_parameters():
        assert (one - dict(whole.named_parameters())[name]).abs().max() < 1e-12


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_replicas_add_up_the_gradients_of_several_steps(reduction):
    mesh = (hvd.size(), 1)
    model = make_model(2)
    loss_fn = functools.partial(torch.nn.functional.mse_loss, reduction=reduction)
    pipeline = Pipeline(
        [model], loss_fn=loss_fn, microbatches=3, mesh=mesh, loss_reduction=reduction
    )
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    optimizer = pipeline.distributed(optimizer, backward_passes_per_step=2)
    for seed in range(2):
        optimizer.zero_grad()
        total = {}
        for part in range(2):
            batch = make_batch(6 * hvd.size(), 2 * seed + part)
            expected_loss, expected = in_one_process(model, *batch, loss_fn=loss_fn)
            loss = pipeline.step(*part_of(batch, mesh))
            assert abs(loss - expected_loss) < 1e-11 * max(1, abs(expected_loss))
            for name, one in expected.items():
                total[f"0.{name}"] = total.get(f"0.{name}", 0) + one
        optimizer.step()  # the gradients are the sums when it has reduced them
        require_gradients(pipeline, total)


@pytest.mark.parametrize("steps", [0, 1.5, "two"])
def test_a_wrong_number_of_steps_is_refused(steps):
    pipeline = Pipeline(
        [make_model(1)], loss_fn=torch.nn.functional.mse_loss, microbatches=1, mesh=(hvd.size(), 1)
    )
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    with pytest.raises((TypeError, ValueError), match="backward_passes_per_step"):
        pipeline.distributed(optimizer, backward_passes_per_step=steps)


def test_a_pipeline_of_one_rank_is_data_parallel():
    model = make_model(2)
    pipeline = Pipeline(
        [model],
        loss_fn=torch.nn.functional.mse_loss,
        microbatches=3,
        mesh=(hvd.size(), 1),
    )
    optimizer = pipeline.distributed(torch.optim.SGD(pipeline.parameters(), lr=0.1))
    batch = make_batch(6 * hvd.size())
    expected_loss, expected = in_one_process(model, *batch)
    assert abs(pipeline.step(*part_of(batch, (hvd.size(), 1))) - expected_loss) < 1e-12
    optimizer.step()
    require_gradients(pipeline, {f"0.{name}": one for name, one in expected.items()})


class Language(torch.nn.Sequential):
    """An embedding, layers, and a head with the embedding's weight."""

    def __init__(self, layers):
        table = torch.nn.Embedding(11, WIDTH, dtype=torch.float64)
        head = torch.nn.Linear(WIDTH, 11, bias=False, dtype=torch.float64)
        head.weight = table.weight
        middle = [torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(layers)]
        super().__init__(table, *middle, head)


def words(rows):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(11, (rows,), generator=generator) for _ in range(2)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tied_weights_get_the_sum_of_their_gradients(schedule):
    for count in sorted({1, replicas()}):
        train_tied(schedule, (count, hvd.size() // count))


def train_tied(schedule, mesh):
    stages = stages_of(schedule, mesh[1])
    torch.manual_seed(0)
    model = Language(stages)
    whole = copy.deepcopy(model)
    pipeline = Pipeline(
        model,
        loss_fn=torch.nn.functional.cross_entropy,
        schedule=schedule,
        microbatches=2 * mesh[1],
        split=list(range(2, stages + 1)),
        mesh=mesh,
    )
    optimizer = pipeline.distributed(torch.optim.SGD(pipeline.parameters(), lr=0.1))
    batch = words(16 * mesh[0])
    for _ in range(3):
        expected_loss, expected = in_one_process(
            whole, *batch, loss_fn=torch.nn.functional.cross_entropy
        )
        expected[f"{stages + 1}.weight"] = expected["0.weight"]
        optimizer.zero_grad()
        assert abs(pipeline.step(*part_of(batch, mesh)) - expected_loss) < 1e-12
        optimizer.step()
        require_gradients(pipeline, expected)
        for name, one in whole.named_parameters():
            one.data -= 0.1 * expected[name]
    for name, one in pipeline.state_dict().items():
        assert (one - whole.state_dict()[name]).abs().max() < 1e-12


def test_parameters_of_different_modules_may_be_tied():
    torch.manual_seed(hvd.rank())
    makers = [lambda: torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)] * hvd.size()
    tied = [[(stage, "weight") for stage in range(hvd.size())]] if hvd.size() > 1 else []
    pipeline = Pipeline(
        makers,
        loss_fn=torch.nn.functional.mse_loss,
        microbatches=hvd.size(),
        tied=tied,
    )
    (own,) = pipeline.modules.values()
    weights = hvd.allgather(own.weight.detach()[None])
    assert all(torch.equal(one, weights[0]) for one in weights)
    layers = [torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(hvd.size())]
    biases = hvd.allgather(own.bias.detach()[None])
    for layer, bias in zip(layers, biases, strict=True):
        layer.weight, layer.bias = layers[0].weight, torch.nn.Parameter(bias.clone())
    with torch.no_grad():
        layers[0].weight.copy_(weights[0])
    x, target = make_batch(12)
    _, expected = in_one_process(torch.nn.Sequential(*layers), x, target)
    pipeline.step(x, target)
    assert (own.weight.grad - expected["0.weight"]).abs().max() < 1e-12
    gradients = hvd.allgather(own.weight.grad[None])
    assert all(torch.equal(one, gradients[0]) for one in gradients)
    assert (own.bias.grad - expected[f"{hvd.rank()}.bias"]).abs().max() < 1e-12
