"""Balanced cuts, reports, checkpoints, and mistakes in arguments, of pipelines."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")
from pipeline_models import (  # noqa: E402
    WIDTH,
    in_one_process,
    make_batch,
    make_model,
    make_pipeline,
    require_gradients,
)

import perseus.torch.horovod as hvd  # noqa: E402
from perseus.pipeline import Pipeline, StageError  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")
MSE = torch.nn.functional.mse_loss


class Pause(torch.nn.Module):
    """A layer that takes its time."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return x


def test_a_balanced_split_follows_what_layers_take():
    """The first layer takes as long as the others of each stage together."""
    size = hvd.size()
    layers = [Pause(0.06), *(Pause(0.02) for _ in range(3 * (size - 1)))]
    model = torch.nn.Sequential(*layers)
    x, _ = make_batch(2 * size)
    pipeline = Pipeline(model, loss_fn=MSE, microbatches=size, split="balanced", sample=x[:2])
    found = hvd.allgather_object(sorted(pipeline.modules[hvd.rank()]._modules))
    expected = [["0"]] + [[str(i) for i in range(n, n + 3)] for n in range(1, 3 * size - 2, 3)]
    assert [sorted(names, key=int) for names in found] == expected


def test_a_report_has_the_figures_of_all_stages_on_every_rank():
    size = hvd.size()
    pauses = [0.02] * size
    pauses[-1] = 0.04
    pipeline = Pipeline(
        [Pause(pause) for pause in pauses], loss_fn=MSE, microbatches=2 * size, schedule="gpipe"
    )
    for _ in range(2):
        pipeline.step(*make_batch(2 * size))
    begins = [begin for _, begin, _ in pipeline.spans]
    assert begins == sorted(begins) and len(begins) == 4 * size
    report = pipeline.report()
    assert hvd.allgather_object(report) == [report] * size
    assert [row.stage for row in report.stages] == list(range(size))
    assert [row.rank for row in report.stages] == list(range(size))
    for row, pause in zip(report.stages, pauses, strict=True):
        assert row.computed >= pause * 2 * size
    # All but the slowest stage wait, the later ones for what they compute.
    assert size == 1 or report.stages[-1].waited_for_input >= 0.018 * (size - 1)
    assert 0 <= report.bubble < 1
    assert report.expected_bubble == pytest.approx((size - 1) / (3 * size - 1))
    lines = str(report).splitlines()
    assert lines[0].startswith(f"gpipe, {2 * size} micro-batches: ") and "over 2 steps" in lines[0]
    assert "formula for equal stages" in lines[1] and len(lines) == 3 + size
    assert pipeline.report().steps == 0


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_a_checkpoint_fits_any_split_of_the_same_module(folder, schedule):
    layers = 4 * hvd.size()
    x, target = make_batch(8 * hvd.size())
    model = make_model(layers, seed=1)
    _, expected = in_one_process(model, x, target)
    saved = make_pipeline(model, schedule, 2 * hvd.size())
    saved.save(folder)
    files = {file.name for file in folder.iterdir()}
    stages = len(hvd.allgather_object(list(saved.modules))[0]) * hvd.size()
    assert files == {"pipeline.json", *(f"stage-{stage}.pt" for stage in range(stages))}
    for other in ("1f1b", "interleaved"):
        loaded = make_pipeline(make_model(layers, seed=2), other, 2 * hvd.size())
        loaded.load(folder)
        loaded.step(x, target)
        require_gradients(loaded, expected)


def test_a_checkpoint_that_does_not_fit_changes_nothing(folder):
    size = hvd.size()

    def pipeline(width, **options):
        stages = [torch.nn.Linear(width, width) for _ in range(size)]
        return Pipeline(stages, loss_fn=MSE, microbatches=size, **options)

    pipeline(WIDTH).save(folder)
    other = pipeline(WIDTH + 1)
    before = {name: one.clone() for name, one in other.state_dict().items()}
    with pytest.raises(ValueError, match=r"float32\[7, 7\], and float32\[6, 6\] in the state"):
        other.load(folder)
    assert all(torch.equal(one, before[name]) for name, one in other.state_dict().items())
    model = make_pipeline(make_model(size), "1f1b", size)
    with pytest.raises(ValueError, match=f"saved with {size} stages, of which none has layer"):
        model.load(folder)
    with pytest.raises(ValueError, match=r"has no pipeline\.json"):
        model.load(folder / "nothing")
    hvd.barrier()
    if hvd.rank() == size - 1:  # only one rank cannot read
        torch.save({"save": "another", "state": {}}, folder / f"stage-{size - 1}.pt")
    hvd.barrier()
    with pytest.raises(ValueError, match="are of different saves"):
        pipeline(WIDTH).load(folder)


def square(output, target):
    return (output - target).square().mean()


def stages(count=None):
    return [torch.nn.Linear(WIDTH, WIDTH) for _ in range(count or hvd.size())]


def test_arguments_that_are_wrong_on_all_ranks():
    size = hvd.size()
    model = torch.nn.Sequential(*stages())
    for error, expected, given, options in (
        (ValueError, "schedule is '2f2b'; it must be one of", stages(), {"schedule": "2f2b"}),
        (ValueError, "microbatches is 0; it must be 1 or more", stages(), {"microbatches": 0}),
        (ValueError, f"has {size + 1} stages on {size} ranks", stages(size + 1), {}),
        (TypeError, "loss_fn is str; it must be a function", stages(), {"loss_fn": "mse"}),
        (TypeError, "stages is int; it must be a list", 5, {}),
        (TypeError, "stage 0 is str; it must be a torch.nn.Module", ["x"] * size, {}),
        (ValueError, "split is None; for a module it must name", model, {}),
        (ValueError, "sample is None; to cut Linear, which is", stages()[0], {"split": ["x"]}),
        (ValueError, r"split is '1'; it must be .balanced., or a list", model, {"split": "1"}),
        (ValueError, "split is .* with a list of stages it must be None", stages(), {"split": []}),
        (ValueError, "sample is None; with split=", model, {"split": "balanced"}),
        (ValueError, "codec is 'zip'; it must be None or one of", stages(), {"codec": "zip"}),
        (ValueError, "it must be one codec, or a pair", stages(), {"codec": (None,)}),
        (
            ValueError,
            'loss_reduction is None; it must be "mean"',
            stages(),
            {"loss_reduction": None},
        ),
        (ValueError, "its product must be the number of ranks", stages(), {"mesh": (9, 9)}),
        (ValueError, "tied has the group", stages(), {"tied": [[(0, "weight")]]}),
        (ValueError, "tied is 'weight'; it must be a list of groups", stages(), {"tied": "weight"}),
        (
            ValueError,
            r"layer 0 of the module cannot compute with float32\[2, 3\], which the sample",
            model,
            {"split": "balanced", "sample": torch.rand(2, 3)},
        ),
    ):
        options = {"loss_fn": MSE, "microbatches": size, **options}
        with pytest.raises(error, match=expected):
            Pipeline(given, **options)
    if size > 1:
        with pytest.raises(ValueError, match="stage 0 has no parameter 'gain'"):
            Pipeline(
                stages(),
                loss_fn=MSE,
                microbatches=size,
                tied=[[(0, "gain"), (size - 1, "weight")]],
            )
        with pytest.raises(ValueError, match="must be at least"):
            Pipeline(stages(), loss_fn=MSE, microbatches=size - 1)


def test_ranks_that_disagree_are_told_on_every_rank():
    size = hvd.size()
    if size == 1:
        return
    is_last = hvd.rank() == size - 1
    usual = {"loss_fn": MSE, "microbatches": 2 * size}
    model = torch.nn.Sequential(*stages(2 * size))
    splits = [list(range(2, 2 * size, 2)), list(range(1, size))]
    wider = [*stages(size - 1), torch.nn.Linear(WIDTH, 9)] if is_last else stages()
    for expected, given, options in (
        ("schedule is .* on rank 0 and", stages(), {"schedule": "gpipe" if is_last else "1f1b"}),
        (
            "microbatches is .* on rank 0 and",
            stages(),
            {"microbatches": (3 if is_last else 2) * size},
        ),
        ("the split is at 2.* and at 1", model, {"split": splits[is_last]}),
        ("the codec of activations is", stages(), {"codec": "fp16" if is_last else None}),
        (f"parameters of stage {size - 1} is .*weight float32", wider, {}),
        ("mesh is", stages(1), {"mesh": (size, 1) if is_last else (1, size)}),
    ):
        with pytest.raises(ValueError, match=f"{expected}.*it must be the same on all ranks"):
            Pipeline(given, **{**usual, **options})
    makers = [lambda: torch.nn.Linear(WIDTH, WIDTH)] * (size - 1) + [lambda: 1 / 0]
    error = ZeroDivisionError if is_last else ValueError
    with pytest.raises(error, match=r"^rank \d could not make its part|^division"):
        Pipeline(makers, **usual)


def test_a_batch_that_is_wrong_is_an_error_on_every_rank_and_the_next_step_works():
    size = hvd.size()
    pipeline = Pipeline(stages(), loss_fn=square, microbatches=size + 1)
    x, target = (part.float() for part in make_batch(4 * size))
    is_first, is_last = hvd.rank() == 0, hvd.rank() == size - 1
    first, last = r"stage 0 \(rank 0\)", rf"stage {size - 1} \(rank {size - 1}\)"
    for wrong_x, wrong_target, named, culprit in (
        (x[:size], target, rf"{first}: x has {size} rows; it must have at least", is_first),
        (None, target, rf"{first}: x is None; it must hold a tensor", is_first),
        (x, None, rf"{last}: target is None", is_last),
        (x[:, :3], target, rf"{first} failed in forward of micro-batch 0: RuntimeError", False),
    ):
        error = (ValueError, TypeError) if culprit else StageError
        with pytest.raises(error, match=named):
            pipeline.step(wrong_x, wrong_target)
    with pytest.raises(ValueError, match=rf"x has {4 * size - 1} rows .* target has {4 * size} at"):
        pipeline.step(x[1:], target)
    assert pipeline.step(x, target) > 0


def test_stages_that_do_not_fit_together():
    size = hvd.size()
    given = stages()
    given[-1] = torch.nn.Linear(WIDTH + 1, WIDTH)
    pipeline = Pipeline(given, loss_fn=MSE, microbatches=2 * size)
    x, target = (part.float() for part in make_batch(4 * size))
    source = f"stage {size - 2} gave it" if size > 1 else "its input was"
    expected = (
        rf"stage {size - 1} \(rank {size - 1}\) failed in forward of micro-batch 0: .*{source}"
    )
    with pytest.raises(StageError, match=expected + r" float32\[2, 6\]"):
        pipeline.step(x, target)
    given = stages()
    given[-1] = given[-1].double()
    pipeline = Pipeline(given, loss_fn=MSE, microbatches=2 * size)
    with pytest.raises(StageError, match=rf"stage {size - 1} .*dtype.*float32\[2, 6\]"):
        pipeline.step(x, target)
    pipeline = Pipeline(stages(), loss_fn=lambda y, t: y - t, microbatches=size)
    with pytest.raises(StageError, match=rf"stage {size - 1} .*loss_fn returned float32"):
        pipeline.step(x, target)


def test_a_step_without_gradients_is_an_error_on_every_rank():
    size = hvd.size()
    pipeline = Pipeline(stages(), loss_fn=MSE, microbatches=size)
    x, target = (part.float() for part in make_batch(4 * size))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), pytest.raises(ValueError, match=r"called step where gradients are off"):
            pipeline.step(x, target)
    with torch.set_grad_enabled(hvd.rank() > 0):
        error = StageError if hvd.rank() else ValueError
        with pytest.raises(error, match="rank 0 called step where gradients are off"):
            pipeline.step(x, target)
    assert pipeline.step(x, target) > 0
    detached = Pipeline(stages(), loss_fn=lambda y, t: MSE(y.detach(), t), microbatches=size)
    with pytest.raises(StageError, match=rf"stage {size - 1} .*loss_fn returned a loss without a"):
        detached.step(x, target)
