"""What stages pass to each other: several tensors, nested, of any type, with codecs."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from pipeline_models import WIDTH, in_one_process, make_batch, require_gradients  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402
from perseus.pipeline import Pipeline, StageError  # noqa: E402
from perseus.pipeline.schedules import SCHEDULES  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


class Nested(torch.nn.Module):
    """Takes and gives a mask, a tensor twice, one that is only used in the last stage, and others
    in a dict; the first stage makes them from x."""

    def __init__(self, index, stages):
        super().__init__()
        self.index, self.stages = index, stages
        self.linear = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, *given):
        if self.index == 0:
            (x,) = given
            kept = self.linear(x)
            given = (x > 0.5, x, {"kept": kept, "list": [kept.sum(1), 3, None, "text"]}, 0.5)
        mask, x, others, factor = given
        assert mask.dtype == torch.bool and factor == 0.5
        assert others["list"][1:] == [3, None, "text"]
        y = torch.where(mask, self.linear(x), x) * factor
        if self.index < self.stages - 1:
            return mask, y, others, factor
        return y + others["kept"] + others["list"][0][:, None]


def nested_model(stages):
    torch.manual_seed(0)
    return [Nested(index, stages) for index in range(stages)]


class InOnePiece(torch.nn.Module):
    def __init__(self, stages):
        super().__init__()
        self.stages = torch.nn.ModuleList(stages)

    def forward(self, x):
        value = x
        for stage in self.stages:
            value = stage(*value) if isinstance(value, tuple) else stage(value)
        return value


def whole(stages, x, target):
    loss, gradients = in_one_process(InOnePiece(stages), x, target)
    return loss, {name.removeprefix("stages."): one for name, one in gradients.items()}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nested_values_with_masks_and_plain_parts(schedule):
    stages = nested_model(hvd.size() * (2 if schedule == "interleaved" else 1))
    x, target = make_batch(19)
    expected_loss, expected = whole(stages, x, target)
    pipeline = Pipeline(
        stages, loss_fn=torch.nn.functional.mse_loss, schedule=schedule, microbatches=4 * hvd.size()
    )
    loss = pipeline.step(x, target)
    assert abs(loss - expected_loss) < 1e-12
    assert require_gradients(pipeline, expected) == 2 * len(pipeline.modules)


class Embedding(torch.nn.Module):
    """Begins with integers, and gives as many rows as the longest of them; so micro-batches have
    activations of different shapes."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, WIDTH, dtype=torch.float64)

    def forward(self, batch):
        return self.table(batch["tokens"][:, : int(batch["lengths"].max())])


class Last(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x):
        return self.linear(x).sum(1)


def test_activations_may_have_another_shape_in_each_microbatch():
    torch.manual_seed(0)
    stages = [Embedding(), *(torch.nn.Tanh() for _ in range(hvd.size() - 2)), Last()]
    if hvd.size() == 1:
        stages = [torch.nn.Sequential(*stages)]
    rows = 4 * hvd.size()
    batch = {
        "tokens": torch.randint(50, (rows, 9)),
        "lengths": torch.arange(rows) % 9 + 1,
    }
    target = torch.rand(rows, WIDTH, dtype=torch.float64)
    pipeline = Pipeline(
        stages,
        loss_fn=lambda output, target: (output - target).square().sum(),
        microbatches=rows,
        loss_reduction="sum",
    )
    loss = pipeline.step(batch, target)
    model = torch.nn.Sequential(*stages)
    parts = [
        (model({"tokens": batch["tokens"][i : i + 1], "lengths": batch["lengths"][i : i + 1]}))
        for i in range(rows)
    ]
    assert abs(loss - (torch.cat(parts) - target).square().sum()) < 1e-10


def test_a_frozen_stage_gets_and_gives_no_gradient():
    torch.manual_seed(0)
    stages = [torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(hvd.size())]
    stages[0].requires_grad_(False)
    x, target = make_batch(12)
    for schedule in ("1f1b", "zero-bubble"):
        if hvd.size() > 1:
            expected_loss, expected = whole(stages, x, target)
            pipeline = Pipeline(
                stages,
                loss_fn=torch.nn.functional.mse_loss,
                schedule=schedule,
                microbatches=hvd.size(),
            )
            assert abs(pipeline.step(x, target) - expected_loss) < 1e-12
            if hvd.rank() == 0:
                assert stages[0].weight.grad is None
            else:
                require_gradients(pipeline, expected)
                stages[hvd.rank()].zero_grad()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_may_begin_with_layers_that_work_in_place(schedule):
    """The layers before them do not need what they have given for their backward."""
    torch.manual_seed(0)
    count = hvd.size() * (2 if schedule == "interleaved" else 1)
    layers = []
    for _ in range(count):
        layers += [torch.nn.ReLU(inplace=True), torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)]
    x, target = make_batch(19)
    for split in (list(range(2, 2 * count, 2)), "balanced"):
        model = torch.nn.Sequential(*copy.deepcopy(layers))
        expected_loss, expected = in_one_process(model, x.clone(), target)
        pipeline = Pipeline(
            model,
            loss_fn=torch.nn.functional.mse_loss,
            schedule=schedule,
            microbatches=2 * hvd.size(),
            split=split,
            sample=x[:2].clone(),
            stages_per_rank=count // hvd.size(),
        )
        assert abs(pipeline.step(x.clone(), target) - expected_loss) < 1e-12
        require_gradients(pipeline, expected)


class Output:
    """What only a loss can take."""

    def __init__(self, logits):
        self.logits = logits


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, *values):
        return Output(self.linear(values[0]))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_mixed_precision_and_frozen_weights_are_as_without_a_pipeline(schedule):
    """Stages compute in bfloat16, which also goes between them; every second one has a frozen
    weight. Micro-batches of different sizes are added up in the same order."""
    torch.manual_seed(0)
    count = hvd.size() * (2 if schedule == "interleaved" else 1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(count - 1)] + [Head()]
    for layer in layers[:-1:2]:
        layer.weight.requires_grad_(False)
    x, target = (part.float() for part in make_batch(4 * hvd.size() + 1))
    whole = torch.nn.Sequential(*copy.deepcopy(layers))
    seen = []

    def loss_of(output, target):
        seen.append(output.logits.dtype)
        return torch.nn.functional.mse_loss(output.logits.float(), target)

    pipeline = Pipeline(layers, loss_fn=loss_of, schedule=schedule, microbatches=2 * hvd.size())
    for _ in range(2):  # gradients are added up
        with torch.autocast("cpu", torch.bfloat16):
            loss = pipeline.step(x, target)
    expected_loss = 0
    for part, wanted in zip(
        x.tensor_split(2 * hvd.size()), target.tensor_split(2 * hvd.size()), strict=True
    ):
        with torch.autocast("cpu", torch.bfloat16):
            one = loss_of(whole(part), wanted) * (len(part) / len(x))
        (2 * one).backward()
        expected_loss += one.detach()
    assert abs(loss - expected_loss) < 1e-6 and set(seen) == {torch.bfloat16}
    for name, one in pipeline.named_parameters():
        expected = whole.get_parameter(name).grad
        assert (one.grad is None) == (expected is None), name
        if expected is not None:
            assert (one.grad - expected).norm() <= 1e-2 * expected.norm(), name
    with pytest.raises(StageError, match="holds Output; it must be made of tensors"):
        pipeline.predict(x)


# The values lie in [-1, 1], and so do most gradients. fp16 has 11 bits, bf16 8; int8 is off by at
# most a row's largest magnitude / 254. Each border adds such an error.
@pytest.mark.parametrize(
    ("codec", "bound"),
    [("fp16", 2**-11), ("bf16", 2**-8), ("int8", 1 / 254), ("none", 0), (("int8", None), 1 / 254)],
)
def test_codecs_keep_activations_within_their_bounds(codec, bound):
    borders = hvd.size() - 1
    stages = [torch.nn.Tanh() for _ in range(hvd.size())]
    pipeline = Pipeline(
        stages,
        loss_fn=lambda output, target: (output - target).square().mean(),
        microbatches=2 * hvd.size(),
        codec=codec,
    )
    x, target = make_batch(40)
    x = 2 * x - 1
    _, output = pipeline.step(x, target, outputs=True)
    if output is not None:
        expected = torch.nn.Sequential(*stages)(x)
        difference = (output - expected).abs().max().item()
        assert difference <= borders * bound + 1e-15
        assert (difference > 0) == (bound > 0 and borders > 0)


def test_a_model_trains_with_a_codec_for_activations_and_gradients():
    torch.manual_seed(0)
    stages = [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        for _ in range(hvd.size())
    ]
    x, target = (part.float() for part in make_batch(64))
    plain = InOnePiece(stages)
    pipeline = Pipeline(
        stages, loss_fn=torch.nn.functional.mse_loss, microbatches=2 * hvd.size(), codec="int8"
    )
    loss, gradients = in_one_process(plain, x, target)
    assert abs(pipeline.step(x, target) - loss) < 0.05 * loss
    for name, parameter in pipeline.named_parameters():
        expected = gradients[f"stages.{name}"]
        assert (parameter.grad - expected).norm() < 0.1 * expected.norm() + 1e-7


def test_a_value_that_cannot_be_sent_is_an_error_everywhere():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return {1: x}

    stages = [Odd(), *(torch.nn.Tanh() for _ in range(hvd.size() - 1))]
    pipeline = Pipeline(stages, loss_fn=torch.nn.functional.mse_loss, microbatches=hvd.size())
    with pytest.raises(StageError, match=r"stage 0 \(rank 0\) failed in forward.*holds dict"):
        pipeline.predict(make_batch(8)[0])
    if hvd.size() > 1:  # a loss may take anything
        with pytest.raises(StageError, match=r"stage 0 \(rank 0\) failed in forward.*holds dict"):
            pipeline.step(*make_batch(8))


def test_a_loss_over_words_that_count_is_that_of_the_whole_batch():
    """Micro-batches have different numbers of them, and one has none."""
    size = hvd.size()
    torch.manual_seed(0)
    stages = [torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(size)]
    x, _ = make_batch(6 * size)
    words = torch.arange(6 * size) % WIDTH
    words[:4] = -1
    cross_entropy = torch.nn.functional.cross_entropy

    def loss_of(logits, target):
        words, count = target
        return cross_entropy(logits, words, ignore_index=-1, reduction="sum") / count[0]

    expected_loss, expected = in_one_process(
        torch.nn.Sequential(*stages), x, words, lambda y, t: cross_entropy(y, t, ignore_index=-1)
    )
    pipeline = Pipeline(stages, loss_fn=loss_of, microbatches=2 * size, loss_reduction="sum")
    count = (words >= 0).sum().expand(len(words))
    assert abs(pipeline.step(x, (words, count)) - expected_loss) < 1e-12
    require_gradients(pipeline, expected)


class Scaled(torch.nn.Module):
    """Uses a weight that is not its own."""

    def __init__(self, weight):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.others = [weight]

    def forward(self, x):
        return torch.tanh(self.linear(x) * self.others[0])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights_of_the_loss_and_of_closures_get_gradients(schedule):
    torch.manual_seed(0)
    count = hvd.size() * (2 if schedule == "interleaved" else 1)
    weights = [torch.rand(WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(count)]
    criterion = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
    stages = [Scaled(weight) for weight in weights]

    def loss_of(output, target):
        return (criterion(output) - target).square().mean()

    x, target = make_batch(19)
    wanted = [*weights, *criterion.parameters()]
    expected_loss = loss_of(torch.nn.Sequential(*stages)(x), target)
    expected = torch.autograd.grad(expected_loss, wanted)
    pipeline = Pipeline(stages, loss_fn=loss_of, schedule=schedule, microbatches=2 * hvd.size())
    assert abs(pipeline.step(x, target) - expected_loss.detach()) < 1e-12
    has = [stage in pipeline.modules for stage in range(count)]
    has += [count - 1 in pipeline.modules] * 2
    for one, gradient, is_here in zip(wanted, expected, has, strict=True):
        assert (one.grad is not None) == is_here
        assert one.grad is None or (one.grad - gradient).abs().max() < 1e-12
