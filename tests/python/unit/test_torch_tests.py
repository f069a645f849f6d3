"""Tests how scripts/torch_tests.py compares the outcomes of PyTorch's own tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import torch_tests  # noqa: E402


def outcomes(backend: str, **tests: str) -> torch_tests.Outcomes:
    return torch_tests.Outcomes(backend, 2, tests, dict.fromkeys(tests, "why\nE: this"))


def test_lines_of_outcomes_are_read(tmp_path: Path) -> None:
    lines = tmp_path / "gloo-2.jsonl"
    assert torch_tests.read(lines, "gloo", 2).tests == {}
    written = [["a", "passed", "", 0.1], ["b", "skipped", "no GPU", 0.1]]
    lines.write_text("".join(json.dumps(line) + "\n" for line in written))
    found = torch_tests.read(lines, "gloo", 2)
    assert found.tests == {"a": "passed", "b": "skipped"}
    assert torch_tests.row(found) == "| gloo | 2 | 1 | 1 | 0 |"


def test_what_is_worse_than_on_gloo_without_a_reason_is_a_surprise() -> None:
    gloo = outcomes("gloo", a="passed", b="passed", c="passed", d="failed", e="skipped", f="passed")
    ours = outcomes("perseus", a="passed", b="failed", c="failed", d="failed")
    assert torch_tests.surprising(gloo, ours, {"c": "a reason"}) == [
        "b passes on Gloo and is failed at 2 ranks, and explained.json does not say why",
        "f passes on Gloo and is not run at 2 ranks, and explained.json does not say why",
    ]


def test_a_test_that_passes_despite_a_reason_is_a_surprise() -> None:
    gloo = outcomes("gloo", a="passed", b="failed")
    ours = outcomes("perseus", a="passed", b="passed")
    assert torch_tests.surprising(gloo, ours, {"a@2": "", "b@3": ""}) == [
        "a passes at 2 ranks, and explained.json says why not"
    ]


def test_the_report_gives_reasons() -> None:
    gloo = outcomes("gloo", a="failed", b="passed", c="skipped", d="skipped")
    ours = outcomes("perseus", a="passed", b="failed")
    assert torch_tests.report(gloo, ours, {"b": "a reason"}) == [
        "    2 left out: why\nE: this",
        "    a fails on gloo: E: this",
        "    b fails on perseus: a reason",
    ]
