"""Tests that a benchmark checks every element of a result before it times the operation."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from contest.works.check import require


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_right_results_pass(kind) -> None:
    require(kind([3.0, 3.0, 3.0]), 3, 3)
    require(kind([1.0, 1.0, 2.0, 2.0]), 4, 1, 2)


@pytest.mark.parametrize("wrong", [2.0, float("nan")])
@pytest.mark.parametrize("at", range(4))
def test_one_wrong_element_is_noticed_wherever_it_is(at: int, wrong: float) -> None:
    result = np.full(4, 3, np.float32)
    result[at] = wrong
    with pytest.raises(ArithmeticError, match=f"1 of 4 elements; element {at} is .*, not 3"):
        require(result, 4, 3)


def test_parts_in_another_order_and_missing_elements_are_noticed() -> None:
    with pytest.raises(ArithmeticError, match="element 0 is 2, not 1"):
        require(np.array([2, 2, 1, 1], np.float32), 4, 1, 2)
    with pytest.raises(ArithmeticError, match="3 elements, not 4"):
        require(np.ones(3, np.float32), 4, 1)
