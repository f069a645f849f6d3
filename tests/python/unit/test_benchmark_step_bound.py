"""The lower bound that benchmarks/step.py shows beside what it measured."""

from __future__ import annotations

import importlib
import itertools
import random
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("contest.step_bound")


def test_two_hosts_send_a_buffer_once_and_many_almost_twice(bound: ModuleType) -> None:
    assert bound.bytes_on_the_link(100, 1) == 0
    assert bound.bytes_on_the_link(100, 2) == 100
    assert bound.bytes_on_the_link(100, 4) == 150


def test_communication_that_fits_behind_backward_costs_only_the_last_gradient(
    bound: ModuleType,
) -> None:
    # Layer 0's gradient comes last, at 6, and nothing is left to hide it.
    assert bound.step_seconds([1, 1, 1], [2, 2, 2], [0.5, 1, 1], overlap=False) == 9.5
    assert bound.step_seconds([1, 1, 1], [2, 2, 2], [0.5, 1, 1], overlap=True) == 9.5


def test_overlap_hides_behind_forward_what_the_last_layers_need(bound: ModuleType) -> None:
    # Gradient 1 is there at 2 and needs 10; gradient 0 comes at 4, needs 1, and goes between.
    assert bound.step_seconds([3, 3], [2, 2], [1, 10], overlap=False) == 13 + 6
    assert bound.step_seconds([3, 3], [2, 2], [1, 10], overlap=True) == 13 + 3


def test_compute_only_is_the_step_where_nothing_moves(bound: ModuleType) -> None:
    for overlap in (False, True):
        assert bound.step_seconds([1, 2], [2, 4], [0, 0], overlap) == 9


def test_no_fixed_order_is_better(bound: ModuleType) -> None:
    generator = random.Random(1)
    for _ in range(20):
        forward = [generator.uniform(0.1, 2) for _ in range(5)]
        backward = [2 * seconds for seconds in forward]
        moving = [generator.uniform(0.1, 4) for _ in range(5)]
        released = [sum(backward[layer:]) for layer in range(5)]
        best = min(
            max(
                done + sum(forward[layer:])
                for layer, done in enumerate(bound.completions(released, moving, order))
            )
            for order in itertools.permutations(range(5))
        )
        assert bound.step_seconds(forward, backward, moving, overlap=True) == pytest.approx(best)
