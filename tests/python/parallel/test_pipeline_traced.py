"""Modules that are no Sequential are traced and cut, and compute what they compute in one piece."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from pipeline_models import require_gradients, stages_of  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402
from perseus.pipeline import Pipeline, StageError  # noqa: E402
from perseus.pipeline.schedules import SCHEDULES  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")
WORDS, WIDTH = 13, 8


class Block(torch.nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.before = torch.nn.LayerNorm(WIDTH)
        self.mix = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.statistics = torch.nn.BatchNorm1d(WIDTH)
        self.after = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 2 * WIDTH),
            torch.nn.ReLU(inplace=True),
            torch.nn.Dropout(dropout),
        )
        self.out = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, mask):
        query, key, value = self.mix(self.before(x)).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, :])
        x = self.statistics(x.transpose(1, 2)).transpose(1, 2)
        return x + self.out(self.after(x))


class Transformer(torch.nn.Module):
    """Takes a dict; values from its beginning are used in all layers and at its end, whose weight
    is that of the embedding."""

    def __init__(self, layers, dropout=0.0):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.places = torch.nn.Embedding(16, WIDTH)
        self.gain = torch.nn.Parameter(torch.rand(WIDTH))
        self.idle = torch.nn.Parameter(torch.rand(3))
        self.register_buffer("scale", torch.rand(WIDTH), persistent=False)
        self.layers = torch.nn.ModuleList(Block(dropout) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, batch, factor):
        words = batch["words"]
        places = torch.arange(words.shape[1], device=words.device)
        x = first = self.embedding(words) * self.gain + self.places(places)
        for layer in self.layers:
            x = layer(x, batch["mask"])
        with torch.no_grad():
            total = x.sum() * torch.tensor(0.01)
        logits = self.head(self.norm(x * self.scale + first)) * factor
        return {"logits": logits, "rest": (total[None], words.sum(1))}


def make(layers, dropout=0.0, seed=0):
    torch.manual_seed(seed)
    return Transformer(layers, dropout).double()


def make_input(rows, length=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (rows, length), generator=generator)
    mask = torch.rand(rows, length, generator=generator) > 0.2
    mask[:, 0] = True
    return ({"words": words, "mask": mask}, 0.5), words.roll(1, 1)


def loss_of(output, target):
    return F.cross_entropy(output["logits"].flatten(0, 1), target.flatten())


def rows_of(x, begin, end):
    batch, factor = x
    return {name: one[begin:end] for name, one in batch.items()}, factor


def by_microbatches(model, x, target, microbatches):
    """Returns what the whole model computes: loss, gradients and logits. It is given one
    micro-batch after the other, since batch normalisation sees no more."""
    model.zero_grad()
    loss, logits, begin = 0.0, [], 0
    for part in target.tensor_split(microbatches):
        output = model(*rows_of(x, begin, begin + len(part)))
        one = loss_of(output, part) * len(part) / len(target)
        if model.training:
            one.backward()
        loss += float(one.detach())
        logits.append(output["logits"].detach())
        begin += len(part)
    return loss, {name: one.grad for name, one in named(model)}, torch.cat(logits)


def named(model):
    return model.named_parameters(remove_duplicate=False)


def points(stages, layers):
    """Returns points that give each stage some layers, and the last one also the head."""
    each = layers // stages
    return [f"layers.{number}" for number in range(each, layers, each)][: stages - 1]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_transformer_trains_as_in_one_piece(schedule):
    stages = stages_of(schedule)
    microbatches = 2 * hvd.size()
    layers = max(2, stages)
    model, whole = make(layers), make(layers)
    pipeline = Pipeline(
        model,
        loss_fn=loss_of,
        schedule=schedule,
        microbatches=microbatches,
        split=points(stages, layers),
        sample=make_input(4)[0],
    )
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    # Micro-batches of different sizes, and sentences of another length than the sample's.
    for seed, (rows, length) in enumerate([(3 * microbatches, 5), (2 * microbatches + 1, 7)]):
        x, target = make_input(rows, length, seed)
        expected_loss, expected, logits = by_microbatches(whole, x, target, microbatches)
        optimizer.zero_grad()
        loss, output = pipeline.step(x, target, outputs=True)
        assert abs(loss - expected_loss) < 1e-12
        check_gradients(pipeline, expected)
        if output is not None:
            assert (output["logits"] - logits).abs().max() < 1e-12
            assert torch.equal(output["rest"][1], x[0]["words"].sum(1))
        optimizer.step()
        with torch.no_grad():
            for one in whole.parameters():
                one -= 0 if one.grad is None else 0.1 * one.grad
    check_state(pipeline, whole)
    pipeline.train(False)
    _, _, logits = by_microbatches(whole.eval(), x, target, microbatches)
    output = pipeline.predict(x)
    assert output is None or (output["logits"] - logits).abs().max() < 1e-12
    check_state(pipeline, whole)


def check_gradients(pipeline, expected):
    for name, parameter in pipeline.named_parameters():
        if name == "idle":
            assert parameter.grad is None
        else:
            assert (parameter.grad - expected[name]).abs().max() < 1e-12, name


def check_state(pipeline, whole):
    """Asserts that the ranks have all of a model's state, with its values."""
    own = pipeline.state_dict()
    expected = whole.state_dict()
    for name, value in own.items():
        assert (value - expected[name]).abs().max() < 1e-12, name
    everyone = hvd.allgather_object(list(own))
    assert {name for names in everyone for name in names} == expected.keys()


def test_dropout_follows_the_mode_and_the_module_stays_as_it_was():
    size = hvd.size()
    model = make(size, dropout=1.0)
    model.layers[0].eval()  # also a part that does not train
    modes = [part.training for part in model.modules()]
    keys, state = [*model.__dict__], torch.get_rng_state()
    x, target = make_input(3 * size)
    pipeline = Pipeline(
        model,
        loss_fn=loss_of,
        microbatches=size,
        split=points(size, size),
        sample=rows_of(x, 0, 3),
    )
    assert modes == [part.training for part in model.modules()]
    assert keys == [*model.__dict__] and torch.equal(state, torch.get_rng_state())
    for is_training in (True, False, True):
        pipeline.train(is_training)
        whole = make(size, dropout=1.0).train(is_training)
        whole.layers[0].eval()
        whole.load_state_dict(merged(pipeline))
        expected_loss, _, _ = by_microbatches(whole, x, target, size)
        assert abs(pipeline.step(x, target) - expected_loss) < 1e-12
        dropped = whole.layers[-1].after[2].training
        assert dropped == (is_training and size > 1)


def merged(pipeline):
    return {
        name: one
        for state in hvd.allgather_object(pipeline.state_dict())
        for name, one in state.items()
    }


class Uneven(torch.nn.Module):
    """Has layers in two lists, of which one costs as much as many others."""

    def __init__(self, layers):
        super().__init__()
        self.early = torch.nn.ModuleList([torch.nn.Linear(256, 256), Slow()])
        self.late = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(layers))

    def forward(self, x):
        y = self.early[1](self.early[0](x))
        for layer in self.late:
            y = y + torch.tanh(layer(y)) + x
        return y


class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(256, 256) / 256)

    def forward(self, x):
        for _ in range(64):
            x = torch.tanh(x @ self.weight)
        return x


def test_balanced_cuts_are_between_the_modules_of_lists():
    size = hvd.size()
    torch.manual_seed(0)
    model = Uneven(2 * size).double()
    x = torch.rand(64 * size, 256, dtype=torch.float64)
    pipeline = Pipeline(
        model, loss_fn=F.mse_loss, microbatches=size, split="balanced", sample=x[:64]
    )
    assert all(one.grad is None for one in model.parameters())
    whole = copy.deepcopy(model)
    expected = F.mse_loss(whole(x), x)
    expected.backward()
    assert abs(pipeline.step(x, x) - expected.detach()) < 1e-12
    require_gradients(pipeline, {name: one.grad for name, one in whole.named_parameters()})
    names = hvd.allgather_object([name for name, _ in pipeline.named_parameters()])
    assert sum(map(len, names)) == len(whole.state_dict()) and all(names)
    slow = next(own for own in names if "early.1.weight" in own)
    assert size == 1 or not any(name.startswith("late") for name in slow)


def test_a_sequential_may_be_cut_within_a_child():
    size = hvd.size()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH).double() for _ in range(size)]
    model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Sequential(*layers))
    x = torch.rand(4 * size, WIDTH, dtype=torch.float64)
    expected = F.mse_loss(model(x), x)
    pipeline = Pipeline(
        copy.deepcopy(model),
        loss_fn=F.mse_loss,
        microbatches=size,
        split=[f"1.{number}" for number in range(1, size)],
        sample=x[:2],
    )
    expected.backward()
    assert abs(pipeline.step(x, x) - expected.detach()) < 1e-12
    require_gradients(pipeline, {name: one.grad for name, one in model.named_parameters()})


class Choosing(torch.nn.Module):
    """Its forward depends on values, so that no graph has all of it."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(WIDTH, WIDTH)
        self.other = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.one(x)
        return self.other(y) if y.sum() > 0 else y


class InPlace(torch.nn.Module):
    """Has a value changed in place through another that shares its memory."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(WIDTH, WIDTH)
        self.activation = torch.nn.ReLU(inplace=True)
        self.other = torch.nn.Linear(WIDTH, WIDTH)
        self.unused = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.one(x)
        kept = y[:, :2]
        self.activation(y)
        return self.other(x) + kept.sum() + y


class Shared(torch.nn.Module):
    """Changes a buffer in one place, and reads it in another."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(self.norm(x)) + self.norm.running_mean


class Enclosed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(WIDTH, WIDTH)
        self.two = torch.nn.Linear(WIDTH, WIDTH)
        self.three = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.autocast("cpu"):
            y = self.two(self.one(x))
        return self.three(y.float())


@pytest.mark.parametrize(
    ("model", "split", "expected"),
    [
        (Choosing, ["other"], "torch.export cannot trace Choosing with the sample.*list with a"),
        (
            InPlace,
            ["activation"],
            "'activation' parts values that share memory, of which aten.re",
        ),
        (
            InPlace,
            ["unused"],
            "split point 'unused' computes nothing in forward; it must be called",
        ),
        (InPlace, ["layer"], "split point 'layer' is no submodule of InPlace; it must be the path"),
        (InPlace, [1], "split point 1 is no submodule of InPlace"),
        (InPlace, ["one"], r"split is \['one'\].*so that each stage has a part"),
        (Enclosed, ["three", "one"], r"split is \['three', 'one'\].*in the order in which forward"),
        (Enclosed, ["two"], "split point 'two' lies in a block of torch.no_grad or torch.autocast"),
        (Shared, ["linear"], "norm.running_mean is changed by stage 0 and used by stage 1"),
    ],
)
def test_what_cannot_be_cut_is_an_error_on_every_rank(model, split, expected):
    with pytest.raises(ValueError, match=expected):
        Pipeline(
            model(),
            loss_fn=F.mse_loss,
            microbatches=hvd.size(),
            split=split,
            sample=torch.rand(4, WIDTH),
        )


def test_an_input_unlike_the_sample_is_an_error_on_every_rank():
    size = hvd.size()
    pipeline = Pipeline(
        make(size),
        loss_fn=loss_of,
        microbatches=size,
        split=points(size, size),
        sample=make_input(4)[0],
    )
    (batch, factor), target = make_input(4 * size)
    with pytest.raises(StageError, match=r"stage 0 \(rank 0\).*x must be made like the sample, \("):
        pipeline.step({"words": batch["words"], "mask": batch["mask"]}, target)
    with pytest.raises(StageError, match=r"stage 0 \(rank 0\) failed.*Guard failed"):
        pipeline.step((batch, 0.25), target)
    assert pipeline.step((batch, factor), target) > 0
    if size > 1:
        with pytest.raises(ValueError, match=r"sample is .* on rank 0 and .* must be the same"):
            Pipeline(
                make(size),
                loss_fn=loss_of,
                microbatches=size,
                split=points(size, size),
                sample=make_input(4 if hvd.rank() else 3)[0],
            )
