"""Tests what benchmarks/small_tensors.py measures in each rank, and the bound that it uses."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


class LoneContender:
    """Stands in for the engine of one rank: a sum is its own input. Records the names."""

    size = 1

    def __init__(self) -> None:
        self.started: list[str] = []

    def tensor(self, elements: int) -> Any:
        return np.ones(elements, np.float32)

    def fill(self, tensor: Any, value: float) -> None:
        tensor.fill(value)

    def allreduce(self, tensor: Any) -> Any:
        return tensor

    def allreduce_async(self, tensor: Any, name: str, priority: int) -> Any:
        self.started.append(name)
        return sum(range(200))  # takes time

    def wait(self, handle: Any) -> None:
        pass

    def barrier(self) -> None:
        pass


@pytest.mark.parametrize("part", ["hand-over", "finishing", "engine", "wall"])
def test_a_step_starts_every_gradient_once(part: str) -> None:
    works = importlib.import_module("contest.works.small_tensors")
    contender = LoneContender()
    times = works.step(contender, iterations=3, name="googlenet", part=part)
    assert len(times) == 3
    assert len(contender.started) == (works.WARM_UP + 3) * 173
    assert contender.started[0] == "googlenet.fc.bias"
    assert part not in ("hand-over", "wall") or min(times) > 0


@pytest.mark.parametrize(
    ("ranks", "cores", "expected"),
    # 2 + 1 in Python and 4 in the engine.
    [(4, 2, 14), (2, 2, 7), (2, 16, 4)],
)
def test_the_bound_is_what_processors_have_to_do(ranks: int, cores: int, expected: float) -> None:
    program = importlib.import_module("small_tensors")
    parts = {"hand-over": 2.0, "finishing": 1.0, "engine": 4.0}
    assert program.bound(parts, ranks, cores) == expected
