"""Tests the parameter tables of the benchmarks: published totals, and the times they imply."""

from __future__ import annotations

import importlib
import statistics
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("contest.models")


@pytest.mark.parametrize(
    ("name", "tensors", "elements"),
    [
        ("resnet50", 161, 25_557_032),
        ("vgg16", 32, 138_357_544),
        ("googlenet", 173, 6_624_904),
        ("bert-base", 199, 109_482_240),
        ("bert-large", 391, 335_141_888),
    ],
)
def test_a_model_has_the_published_number_of_parameters(
    models: ModuleType, name: str, tensors: int, elements: int
) -> None:
    model = models.model(name)
    assert (len(model.tensors), model.elements) == (tensors, elements)


@pytest.mark.parametrize(
    ("name", "gigaflop"),
    # Two operations for each multiply-add, of which torchvision gives 4.09, 15.47 and 1.50 G.
    [("resnet50", 2 * 4.09), ("vgg16", 2 * 15.47), ("googlenet", 2 * 1.50)],
)
def test_a_forward_pass_costs_what_is_published(
    models: ModuleType, name: str, gigaflop: float
) -> None:
    assert models.model(name).flop / 1e9 == pytest.approx(gigaflop, rel=0.01)


def test_every_tensor_has_a_name_of_its_own(models: ModuleType) -> None:
    for name in models.NAMES:
        names = [tensor.name for tensor in models.model(name).tensors]
        assert len(set(names)) == len(names)


def test_the_ctr_like_model_has_many_small_tensors_always_the_same(models: ModuleType) -> None:
    sizes = [tensor.elements for tensor in models.model("ctr").tensors]
    assert len(sizes) == 4000
    assert min(sizes) >= 16
    assert max(sizes) <= 16_384
    assert statistics.median(sizes) == pytest.approx(512, rel=0.1)
    assert sum(sizes) == sum(layer.elements for layer in models.ctr())


def test_slowing_down_stretches_every_layer_alike(models: ModuleType) -> None:
    model = models.model("vgg16")
    fast, slow = models.forward_seconds(model), models.forward_seconds(model, slowdown=10)
    assert slow == pytest.approx([10 * seconds for seconds in fast])
    # 64 images of 31 GFLOP each at 10 TFLOP/s
    assert sum(fast) == pytest.approx(0.198, rel=0.01)
