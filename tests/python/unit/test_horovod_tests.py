"""Tests how scripts/horovod_tests.py puts together what the ranks of Horovod's own tests say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import horovod_tests  # noqa: E402


def test_a_test_passes_if_it_passes_on_all_ranks(tmp_path: Path) -> None:
    def write(rank: int, *lines: tuple[str, str, str]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{rank}.jsonl").write_text(text)

    collected = [(test, "collected", "") for test in "abcde"]
    write(0, *collected, ("a", "passed", ""), ("b", "passed", ""), ("c", "skipped", "no GPU"),
          ("d", "failed", "E   why"), ("d", "passed", ""))  # fmt: skip
    write(1, *collected, ("a", "passed", ""), ("b", "failed", "E   other"), ("c", "passed", ""),
          ("d", "passed", ""))  # fmt: skip
    found = horovod_tests.read(tmp_path, "f.py", 2)
    assert found.tests == dict(a="passed", b="failed", c="passed", d="failed", e="collected")
    assert found.failed() == ["b", "d", "e"]
    assert horovod_tests.report(found, {"d": "a reason"}) == [
        "| f.py | 2 | 5 | 2 | 0 | 3 |",
        "    b failed: other",
        "    d failed: a reason",
        "    e collected: ",
    ]


def test_a_rank_that_says_nothing_has_passed_nothing(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text(json.dumps(["a", "passed", ""]) + "\n")
    assert horovod_tests.read(tmp_path, "f.py", 2).tests == {"a": "collected"}


def test_what_is_not_as_explained_is_a_surprise() -> None:
    tests = {"f.py::a": "passed", "f.py::b": "failed", "f.py::c": "failed", "f.py::d": "skipped"}
    found = horovod_tests.Outcomes("f.py", 3, tests, dict.fromkeys(tests, ""))
    explained = {"f.py::a@3": "", "f.py::b@2": "", "f.py::c*": "", "f.py::d": ""}
    assert horovod_tests.surprising(found, explained) == [
        "f.py::a passes at 3 ranks, and explained.json says why not",
        "f.py::b fails at 3 ranks, and explained.json does not say why",
    ]
