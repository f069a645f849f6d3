"""Checkpoints of pipelines have the optimizer's state, and fit other splits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from pipeline_models import (  # noqa: E402
    WIDTH,
    in_one_process,
    make_batch,
    make_model,
    make_pipeline,
)

import perseus.torch.horovod as hvd  # noqa: E402
from perseus.pipeline import Pipeline  # noqa: E402

MSE = torch.nn.functional.mse_loss


@pytest.fixture(scope="module", autouse=True)
def dynamic_sets():
    hvd.init(process_sets="dynamic")


def adam(parameters):
    """Returns an optimizer with two groups: biases learn at another rate."""
    named = list(parameters)
    biases = [one for name, one in named if name.endswith("bias")]
    others = [one for name, one in named if not name.endswith("bias")]
    return torch.optim.Adam([{"params": others, "lr": 0.03}, {"params": biases, "lr": 0.01}])


def train(pipeline, optimizer, steps, ranks=None):
    """Trains a pipeline over so many ranks, of which there may be several."""
    ranks = ranks or hvd.size()
    for seed in steps:
        batch = make_batch(16, seed)
        optimizer.zero_grad()
        pipeline.step(*(one.chunk(hvd.size() // ranks)[hvd.rank() // ranks] for one in batch))
        optimizer.step()


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_training_goes_on_with_another_split_as_if_it_had_not_stopped(folder, schedule):
    layers = 4 * hvd.size()
    whole = make_model(layers)
    expected = adam(whole.named_parameters())
    for seed in range(4):
        _, gradients = in_one_process(whole, *make_batch(16, seed))
        for name, one in whole.named_parameters():
            one.grad = gradients[name]
        expected.step()
        if seed == 1:
            expected.param_groups[0]["lr"] = 0.02  # as a schedule of learning rates does
    first = make_pipeline(make_model(layers), schedule, 2 * hvd.size())
    optimizer = adam(first.named_parameters())
    train(first, optimizer, range(2))
    optimizer.param_groups[0]["lr"] = 0.02
    first.save(folder, optimizer)
    replicas = 2 if hvd.size() % 2 == 0 else 1
    for other, mesh in (
        ("1f1b", (1, hvd.size())),
        ("interleaved", (replicas, hvd.size() // replicas)),
    ):
        model = make_model(layers, seed=5)
        second = make_pipeline(model, other, 2 * mesh[1], ranks=mesh[1], mesh=mesh)
        optimizer = second.distributed(adam(second.named_parameters()))
        second.load(folder, optimizer)
        assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.01]
        train(second, optimizer, range(2, 4), mesh[1])
        for name, one in second.named_parameters():
            assert (one - whole.get_parameter(name)).abs().max() < 1e-9, name


def test_a_tied_weight_keeps_its_state_when_its_stages_part(folder):
    """It is saved where both stages are on one rank, or on two, and loaded on two, or one."""
    size = hvd.size()
    layers = [torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(size + 1)]
    layers[-1].weight = layers[0].weight
    model = torch.nn.Sequential(*layers)

    def make(ranks):
        split = [1, *range(2, ranks)][: ranks - 1]
        return Pipeline(
            model, loss_fn=MSE, microbatches=ranks, split=split, mesh=(size // ranks, ranks)
        )

    for saved, loaded in ((size, 1), (1, size)):
        pipeline = make(saved)
        optimizer = pipeline.distributed(torch.optim.Adam(pipeline.parameters(), lr=0.01))
        train(pipeline, optimizer, range(2), saved)
        pipeline.save(folder, optimizer)
        own = optimizer.state.get(layers[0].weight, {}).get("exp_avg")
        moments = hvd.broadcast_object(own, 0)  # rank 0 has the first stage
        other = make(loaded)
        optimizer = torch.optim.Adam(other.parameters(), lr=0.5)
        other.load(folder, optimizer)
        assert optimizer.param_groups[0]["lr"] == 0.01
        for name, one in other.named_parameters():
            if name in ("0.weight", f"{size}.weight"):
                assert torch.equal(optimizer.state[one]["exp_avg"], moments)


def test_an_optimizer_that_does_not_fit_is_an_error_on_every_rank(folder):
    size = hvd.size()
    pipeline = make_pipeline(make_model(2 * size), "1f1b", size)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1, momentum=0.9)
    train(pipeline, optimizer, [0])
    pipeline.save(folder)
    with pytest.raises(ValueError, match="was saved without an optimizer; give one to save, or"):
        pipeline.load(folder, optimizer)
    with pytest.raises(ValueError, match="is in no stage of this rank; it must be one of the pip"):
        stray = torch.nn.Parameter(torch.zeros(3))
        pipeline.save(folder, torch.optim.SGD([*pipeline.parameters(), stray], lr=0.1))
    if size > 1:
        with pytest.raises(ValueError, match="optimizer is given on rank 0 and None on rank 1"):
            pipeline.save(folder, None if hvd.rank() else optimizer)
    some = list(pipeline.parameters())[1:]
    pipeline.save(folder, torch.optim.SGD(some, lr=0.1))
    with pytest.raises(ValueError, match=r"the checkpoint has no optimizer's state of layer\d+\."):
        pipeline.load(folder, optimizer)
    pipeline.load(folder, torch.optim.SGD(some, lr=0.3))
    pipeline.save(folder, adam(pipeline.named_parameters()))
    before = {name: one.clone() for name, one in pipeline.state_dict().items()}
    with torch.no_grad():
        for one in pipeline.parameters():
            one += 1
    with pytest.raises(ValueError, match="are in one group of the optimizer, and were saved in"):
        pipeline.load(folder, torch.optim.Adam(pipeline.parameters()))
    for name, one in pipeline.named_parameters():
        assert torch.equal(one, before[name] + 1)  # nothing was changed


def test_files_that_are_not_this_models_are_an_error_on_every_rank(folder):
    size = hvd.size()

    def pipeline(layers):
        return make_pipeline(make_model(layers), "1f1b", size)

    pipeline(3 * size).save(folder)
    with pytest.raises(ValueError, match=rf"has layer{2 * size}\..* more, which no stage of this"):
        pipeline(2 * size).load(folder)
    if hvd.rank() == 0:
        file = folder / f"stage-{size - 1}.pt"
        file.write_bytes(file.read_bytes()[:500])
    hvd.barrier()
    with pytest.raises(ValueError, match=rf"stage-{size - 1}.pt cannot be read"):
        pipeline(3 * size).load(folder)
    (folder / "a").write_text("a file")
    hvd.barrier()
    with pytest.raises(ValueError, match=r"stage-\d+.pt cannot be written: "):
        pipeline(size).save(folder / "a" / "b")
