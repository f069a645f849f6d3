"""Tests which rows of the results the table of docs/performance.md takes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    sys.modules.pop("make_performance_page", None)
    return importlib.import_module("make_performance_page")


def step(contender: str, hosts: int, exposed: float) -> dict[str, Any]:
    return {
        "work": "step of vgg16",
        "hosts": hosts,
        "ranks": hosts,
        "caps": "1000 Mbit/s, 250 a connection",
        "contender": contender,
        "median": 10 * exposed,
        "exposed": exposed,
        "bound": 1000.0,
    }


def results(page: ModuleType, rows: list[dict[str, Any]]) -> Any:
    found = page.Results()
    found.files = {"hosts": {"rows": rows}}
    return found


def test_rows_of_other_hosts_do_not_change_the_table(page: ModuleType) -> None:
    four = [step("perseus", 4, 1000.0), step("perseus, both off", 4, 2500.0)]
    two = [step("perseus", 2, 10.0), step("perseus, both off", 2, 500.0)]
    lines = [line.row(results(page, two + four)) for line in page.exposed("vgg16", "VGG-16")]
    assert "| 2.5 |" in lines[0]
    assert "| 1 |" in lines[2]


def test_two_rows_of_one_case_are_an_error_that_names_the_file(page: ModuleType) -> None:
    twice = results(page, [step("perseus", 4, 1000.0), step("perseus", 4, 1100.0)])
    with pytest.raises(ValueError, match=r"hosts\.json has 2 rows with .*step of vgg16"):
        [line.row(twice) for line in page.exposed("vgg16", "VGG-16")]


def test_what_was_not_measured_says_so(page: ModuleType) -> None:
    lines = [line.row(results(page, [])) for line in page.exposed("vgg16", "VGG-16")]
    assert all("not measured" in line for line in lines)


def test_the_fastest_peer_is_the_fastest_of_all(page: ModuleType) -> None:
    rows = [
        step(contender, 4, exposed)
        for contender, exposed in (("perseus", 1.0), ("torch gloo", 4.0), ("open mpi C", 3.0))
    ]
    case = {"work": "step of vgg16", **page.SHAPE}
    line = page.against("a", page.HOSTS_PEERS, None, "hosts", "the fastest peer", **case)
    assert "| 3 | | 10 us, 30 us (open mpi C) |" in line.row(results(page, rows))


def measured_at(commit: str, **more: Any) -> dict[str, Any]:
    versions = {"versions": {"perseus": commit}}
    return {"date": "2026-03-02T01:00:00+00:00", "machine": versions, "rows": [], **more}


def test_the_page_says_of_what_commit_and_date_the_results_in_use_are(page: ModuleType) -> None:
    found = page.Results()
    found.files = {
        "hosts": measured_at("abc1234", finished=True),
        "latency": measured_at("abc1234", finished=False),
        "step": measured_at("abc1234-dirty"),
        "training": measured_at("def5678"),
    }
    for program in ("hosts", "latency", "step"):
        found.rows(program)
    assert found.origins() == (
        "Measured: hosts at abc1234, 2026-03-02; latency at abc1234, 2026-03-02, cut short; "
        "step at abc1234 with changes that were not committed, 2026-03-02."
    )


def test_the_page_says_which_results_are_missing(page: ModuleType) -> None:
    found = page.Results()
    found.files = {"hosts": measured_at("abc1234")}
    rows = [line.row(found) for line in page.tuned(found)]
    found.rows("hosts")
    assert rows == []
    assert found.origins() == ("Measured: hosts at abc1234, 2026-03-02.\nNot measured yet: tuning.")


@pytest.mark.parametrize("words", [[], ["--allow-dirty"], ["--check"]])
def test_results_of_a_dirty_tree_are_refused_unless_allowed(
    page: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "hosts.json").write_text(json.dumps(measured_at("abc1234-dirty")))
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_performance_page.py", *words])
    sections: list[dict[str, str]] = []
    monkeypatch.setattr(page, "update", lambda _, written, check: sections.append(written))
    if words:
        page.main()
        assert "hosts at abc1234 with changes" in sections[0]["figures"]
        return
    with pytest.raises(SystemExit, match=r"benchmarks/results/hosts\.json: of a tree with changes"):
        page.main()
    assert sections == []
