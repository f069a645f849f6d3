"""LayerWise in one process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from perseus.pipeline.errors import StageError  # noqa: E402
from perseus.pipeline.layerwise import RBM, Autoencoder, LayerWise, LocalLoss, Stage  # noqa: E402
from perseus.pipeline.layerwise.chunks import Chunk, pack, unpack  # noqa: E402

Batches = list[Any]


def rows(count: int = 6, width: int = 12) -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(8, width, generator=generator) for _ in range(count)]


def labelled(count: int = 6) -> Batches:
    return [(batch, (batch.sum(1) > 6).long()) for batch in rows(count)]


def rbms() -> list[Stage]:
    return [RBM(12, 10, seed=1), RBM(10, 8, seed=2), RBM(8, 6, seed=3)]


def autoencoders() -> list[Stage]:
    torch.manual_seed(0)

    def layer(inputs: int, outputs: int, seed: int) -> Stage:
        encoder = nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh(), nn.Dropout(0.2))
        decoder = nn.Linear(outputs, inputs)
        return Autoencoder(encoder, decoder, sgd, noise=0.1, seed=seed)

    return [layer(12, 10, 1), layer(10, 8, 2), layer(8, 6, 3)]


def classifiers() -> list[Stage]:
    torch.manual_seed(0)

    def layer(inputs: int, outputs: int) -> Stage:
        module = nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU())
        return LocalLoss(module, nn.Linear(outputs, 2), nn.functional.cross_entropy, sgd)

    return [layer(12, 10), layer(10, 8), layer(8, 6)]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


KINDS = {
    "RBM": (rbms, rows),
    "Autoencoder": (autoencoders, rows),
    "LocalLoss": (classifiers, labelled),
}
each_kind = pytest.mark.parametrize(("make", "data"), KINDS.values(), ids=KINDS)
Make = Callable[[], list[Stage]]


def same(one: list[Stage], other: list[Stage]) -> bool:
    return all(
        torch.equal(a, b)
        for first, second in zip(one, other, strict=True)
        for a, b in zip(first.parameters().values(), second.parameters().values(), strict=True)
    )


def greedy(stages: list[Stage], batches: Batches, epochs: int, follow_every: int | None) -> None:
    """Trains one stage after the other.

    Args:
      follow_every: after this many mini-batches a copy is set to the original again; None: only
        once, as in common greedy training.
    """
    for number, stage in enumerate(stages):
        updates = 0
        for _ in range(epochs):
            for one in batches:
                batch, target = one if isinstance(one, tuple) else (one, None)
                for lower in stages[:number]:
                    batch = lower.forward(batch)
                if number and updates % (follow_every or epochs * len(batches)) == 0:
                    stage.follow(stages[number - 1].copied())
                stage.progress(updates / (epochs * len(batches) - 1))
                stage.train(batch, target)
                updates += 1


@each_kind
def test_where_nothing_overlaps_the_result_is_that_of_greedy_training(
    make: Make, data: Callable[[], Batches]
) -> None:
    expected, found = make(), make()
    greedy(expected, data(), epochs=2, follow_every=None)
    LayerWise(found, chunk=12, delay=1.0).train(data(), epochs=2)  # one chunk is all there is
    assert same(found, expected)


@each_kind
def test_with_a_delay_of_all_chunks_copies_follow_at_each_chunk(
    make: Make, data: Callable[[], Batches]
) -> None:
    expected, found = make(), make()
    greedy(expected, data(), epochs=2, follow_every=5)
    LayerWise(found, chunk=5, delay=1.0).train(data(), epochs=2)
    assert same(found, expected)


def test_stages_that_overlap_follow_the_rules_of_the_paper() -> None:
    """Algorithm 2, written out: middle results, and biases of copies at each receipt."""
    found = rbms()
    LayerWise(found, chunk=4).train(rows(), epochs=2)
    expected = rbms()
    data = rows() * 2
    for begin in range(0, 12, 4):
        batches = data[begin : begin + 4]
        for number, stage in enumerate(expected):
            if number:
                stage.follow(expected[number - 1].copied())
            results = []
            for position, batch in enumerate(batches):
                stage.progress((begin + position) / 11)
                results.append(stage.train(batch, None))
            batches = results
    assert same(found, expected)


def test_upper_stages_do_not_change_lower_ones() -> None:
    two, three = rbms()[:2], rbms()
    LayerWise(two, chunk=2, delay=0.5).train(rows())
    LayerWise(three, chunk=2, delay=0.5).train(rows())
    assert same(two, three[:2])


@each_kind
def test_training_goes_on_from_states_of_one_chunk(make: Make, data: Callable[[], Batches]) -> None:
    saved: dict[int, dict[int, dict[str, Any]]] = {}

    def save(stage: int, state: dict[str, Any]) -> None:
        saved.setdefault(state["chunk"], {})[stage] = state

    whole = make()
    LayerWise(whole, chunk=2, delay=0.3).train(data(), epochs=3, save=save, save_every=4)
    assert sorted(saved) == [4, 8, 12]
    for states in saved.values():
        found = make()
        pipeline = LayerWise(found, chunk=2, delay=0.3)
        for stage, state in states.items():
            pipeline.load(stage, state)
        pipeline.train(data(), epochs=3)
        assert same(found, whole)


def test_states_of_different_chunks_are_refused() -> None:
    states = []
    LayerWise(rbms(), chunk=2).train(rows(), save=lambda *one: states.append(one), save_every=1)
    pipeline = LayerWise(rbms(), chunk=2)
    for stage, state in [states[0], states[1], states[-1]]:  # of chunks 1, 1 and 2
        pipeline.load(stage, state)
    with pytest.raises(ValueError, match="stage 2 stands at chunk 2 and stage 0 at chunk 1; load"):
        pipeline.train(rows())


def test_data_may_be_a_function_of_the_epoch() -> None:
    listed, called = rbms(), rbms()
    epochs = []

    def batches(epoch: int) -> Batches:
        epochs.append(epoch)
        return rows()[epoch:] + rows()[:epoch]

    LayerWise(called, chunk=4).train(batches, epochs=2)
    LayerWise(listed, chunk=4).train(rows() + rows()[1:] + rows()[:1])
    assert same(called, listed)
    assert epochs == [0, 0, 1]  # the first time for its length


def test_epochs_of_different_lengths_are_refused() -> None:
    data = rows()
    pipeline = LayerWise(rbms())
    with pytest.raises(StageError, match=rf"epoch 1 has {len(data) - 1} .* the length of epoch 0"):
        pipeline.train(lambda epoch: data[epoch:], epochs=2)


@pytest.mark.parametrize("shape", [(0, 12), ()])
def test_a_mini_batch_without_rows_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        StageError, match=rf"mini-batch 1 of epoch 0 has the shape {re.escape(str(shape))}"
    ):
        LayerWise(rbms()).train([rows()[0], torch.zeros(shape)])


def test_the_network_has_the_layers_and_what_is_put_on_top() -> None:
    stages = rbms()
    pipeline = LayerWise(stages)
    pipeline.train(rows())
    network = pipeline.network(nn.Linear(6, 2))
    result = rows()[0]
    for stage in stages:
        result = stage.forward(result)
    torch.testing.assert_close(network[:-1](rows()[0]), result)
    assert network(rows()[0]).shape == (8, 2)


def test_times_are_those_of_each_stage() -> None:
    times = LayerWise(rbms(), chunk=4, delay=0.5).train(rows(), epochs=2)
    assert [one.name for one in times] == ["stage 0 (RBM)", "stage 1 (RBM)", "stage 2 (RBM)"]
    # Three chunks train each stage. Lower ones then compute for those that begin two later each.
    assert [len(one.chunks) for one in times] == [7, 5, 3]
    assert all(one.busy > 0 and len(one.processor) == len(one.chunks) for one in times)
    assert str(times[0]).startswith("stage 0 (RBM) on rank 0: busy 0.")


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float64]
)
def test_a_chunk_arrives_as_it_was_sent(dtype: torch.dtype) -> None:
    batches = [torch.arange(6).view(2, 3).to(dtype), torch.ones(0, 3).to(dtype)]
    targets = [torch.tensor([1, 0]), None]
    chunk = unpack(
        pack(Chunk(7, batches, targets, {"bias": torch.rand(5), "none": torch.ones(())}))
    )
    assert chunk.number == 7
    for found, expected in zip(chunk.batches, batches, strict=True):
        assert found.dtype == dtype and torch.equal(found, expected)
    assert torch.equal(chunk.targets[0], targets[0]) and chunk.targets[1] is None
    assert list(chunk.copied) == ["bias", "none"] and chunk.copied["none"].shape == ()


class Broken(RBM):
    """Does something wrong at its third update."""

    def __init__(self, *sizes: int, what: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(*sizes)
        self.updates, self.what = 0, what

    def train(self, batch: torch.Tensor, target: torch.Tensor | None = None) -> Any:
        self.updates += 1
        result = super().train(batch)
        return self.what(result) if self.updates == 3 else result


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (lambda result: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda result: result[1:], r"ValueError: its result has shape \(7, 8\); it must have"),
        (lambda result: None, "TypeError: its result is NoneType; it must be a tensor"),
    ],
)
def test_a_stage_that_raises_is_named(what: Callable[[torch.Tensor], Any], why: str) -> None:
    pipeline = LayerWise([RBM(12, 10), Broken(10, 8, what=what), RBM(8, 6)], chunk=2)
    with pytest.raises(StageError, match=rf"stage 1 \(Broken\) on rank 0 failed at chunk 1: {why}"):
        pipeline.train(rows())
    with pytest.raises(ValueError, match="stage 0 was left amid a training that failed; load"):
        pipeline.train(rows())


def test_data_that_fails_is_named() -> None:
    def batches(epoch: int) -> Batches:
        return rows(6 - epoch)

    with pytest.raises(
        StageError, match=r"stage 0 .*no data for chunk 11: ValueError: epoch 1 has 5"
    ):
        LayerWise(rbms()).train(batches, epochs=2)
    with pytest.raises(StageError, match=r"mini-batch 2 of epoch 0 is str; it must be a tensor"):
        LayerWise(rbms()).train([*rows(2), "rows"])
    with pytest.raises(StageError, match="failed at chunk 0: ValueError: target is None; the data"):
        LayerWise(classifiers()).train(rows())


@pytest.mark.parametrize(
    ("stages", "options", "error"),
    [
        ([], {}, "stages is empty; it must have one stage or more"),
        ([nn.Linear(3, 4)], {}, "stage 0 is Linear; it must be a Stage"),
        (
            [RBM(12, 10), RBM(9, 8)],
            {},
            r"stage 1 \(RBM\) does not fit stage 0 \(RBM\): it takes rows of \(9,\) and would get",
        ),
        (
            [RBM(12, 10, hidden_units="bipolar"), RBM(10, 8)],
            {},
            r"stage 1 \(RBM\) does not fit .* are binary, and the hidden ones .* are bipolar",
        ),
        (rbms(), {"chunk": 0}, "chunk is 0; it must be 1 or more"),
        (rbms(), {"room": 1.5}, "room is 1.5; it must be a whole number"),
        (rbms(), {"delay": 1.5}, "delay is 1.5; it must be from 0 to 1"),
        (rbms(), {"delay": "a"}, "delay is .a.; it takes a number"),
    ],
)
def test_arguments_that_make_no_sense(stages: Any, options: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        LayerWise(stages, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((None,), {}, "batches is NoneType; it must have a length"),
        (([],), {}, "batches is empty; it must have one mini-batch or more"),
        ((rows(), 0), {}, "epochs is 0; it must be 1 or more"),
        ((rows(),), {"save_every": 0}, "save_every is 0; it must be 1 or more"),
        ((rows(),), {"save_every": 2}, "save and save_every must be given together"),
    ],
)
def test_training_that_makes_no_sense(
    arguments: tuple[Any, ...], options: dict[str, Any], error: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        LayerWise(rbms()).train(*arguments, **options)


def test_a_stage_cannot_be_used_twice() -> None:
    stage = RBM(6, 6)
    with pytest.raises(ValueError, match=r"stage 1 \(RBM\) is in the list twice"):
        LayerWise([stage, stage])


def test_torch_is_imported_when_it_is_used() -> None:
    program = (
        "import sys, perseus.pipeline, perseus.pipeline.layerwise as layerwise\n"
        "assert 'torch' not in sys.modules\n"
        "assert layerwise.LayerWise is perseus.pipeline.LayerWise\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
