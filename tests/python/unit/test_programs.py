"""Tests how scripts/programs.py compares what the ranks of a program have kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import programs  # noqa: E402

RESULTS = json.loads((ROOT / "tests/programs/results.json").read_text())


def kept(*weights: float, value: float = 0.9) -> programs.Kept:
    return programs.Kept([np.array([1.0, weight]) for weight in weights], "accuracy", value)


def test_ranks_that_end_with_the_weights_of_one_process_are_right() -> None:
    assert programs.problem_of([kept(0.5, 2), kept(0.5, 2)], kept(0.5, 2.0001), True) == ""


def test_a_tensor_that_holds_rounding_errors_alone_may_hold_others() -> None:
    ranks = [programs.Kept([np.array([2e-8])], "accuracy", 0.9)] * 2
    alone = programs.Kept([np.array([-1e-8])], "accuracy", 0.9)
    assert programs.problem_of(ranks, alone, True) == ""


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        ([kept(0.5), kept(0.5 + 1e-12)], "rank 1 has other weights than rank 0"),
        ([kept(0.6), kept(0.6)], "weights differ by 1.0e-01 from those of one process"),
        ([kept(0.5, value=0.1)] * 2, "accuracy is 0.1, and 0.9 with one process"),
        ([kept(np.nan)] * 2, "rank 0 has weights that are no numbers"),
        ([kept(0.5), kept()], "rank 1 has 0 weights, and one process 1"),
    ],
)
def test_what_is_not_so_is_a_problem(ranks: list[programs.Kept], problem: str) -> None:
    assert programs.problem_of(ranks, kept(0.5), True) == problem


def test_ranks_that_draw_other_data_must_only_learn_as_well() -> None:
    assert programs.problem_of([kept(0.7), kept(0.7)], kept(0.5), False) == ""
    assert "accuracy is 0.4" in programs.problem_of([kept(0.7, value=0.4)], kept(0.5), False)


def test_a_rank_that_has_kept_nothing_is_noticed(tmp_path: Path) -> None:
    np.savez(tmp_path / "0.npz", figure="accuracy", value=0.5, weight_0000=np.ones(2))
    (found,) = programs.read(tmp_path, 1)
    assert (found.figure, found.value, found.weights[0].tolist()) == ("accuracy", 0.5, [1, 1])
    assert programs.read(tmp_path, 2) == "rank 1 has kept no weights"


def test_a_new_result_replaces_the_old_one_and_keeps_the_others() -> None:
    first, second = (program.title for program in programs.PROGRAMS[:2])

    def result(title: str, ranks: int, day: str) -> programs.Result:
        return programs.Result(title, ranks, "torchrun", {}, "3.11", day)

    old = [vars(result(second, 2, "old")), vars(result("gone", 2, "old"))]
    found = [result(second, 2, "new"), result(first, 3, "new"), result(first, 2, "new")]
    merged = programs.merged(old, found)
    assert [(each["title"], each["ranks"], each["day"]) for each in merged] == [
        (first, 2, "new"),
        (first, 3, "new"),
        (second, 2, "new"),
    ]


@pytest.mark.parametrize("program", programs.PROGRAMS, ids=lambda program: program.title)
def test_a_program_has_requirements_and_a_result(program: programs.Program) -> None:
    assert (ROOT / f"requirements/programs-{program.name}.txt").exists()
    assert (programs.FOLDER / program.file).exists()
    found = [each for each in RESULTS if each["title"] == program.title]
    assert found, "run `make programs`"
    assert [each["problem"] for each in found if each["problem"]] == []
