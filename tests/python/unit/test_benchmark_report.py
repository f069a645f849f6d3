"""Tests the files that benchmarks/ write: checked before measuring, and written case by case."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from contest.conductor import Times


@pytest.fixture
def report() -> ModuleType:
    return importlib.import_module("contest.report")


def parse(report: ModuleType, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("file", ["nowhere/figures.svg", ""])
def test_a_file_that_cannot_be_written_is_refused(
    report: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, file: str
) -> None:
    with pytest.raises(SystemExit):
        parse(report, option, str(tmp_path / file))
    assert f"{tmp_path / file} cannot be written" in capsys.readouterr().err


def test_files_old_and_new_are_taken(report: ModuleType, tmp_path: Path) -> None:
    for _ in range(2):
        file = parse(report, "--json", str(tmp_path / "figures.json")).json
        file.write_text("{}")


@pytest.mark.parametrize("drawing", [True, False])
def test_a_plot_takes_matplotlib_and_a_format(
    report: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    drawing: bool,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if drawing else None)
    if drawing:
        assert parse(report, "--plot", str(tmp_path / "a.svg")).plot == tmp_path / "a.svg"
    with pytest.raises(SystemExit):
        parse(report, "--plot", str(tmp_path / "figures.txt"))
    expected = "neither in .svg nor in .png" if drawing else "matplotlib: make env-benchmarks"
    assert expected in capsys.readouterr().err


def contents(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_what_has_been_measured_is_saved_whole_after_each_case(
    report: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    figures = report.Report("latency", file=file, also={"batch": 32})
    idle = figures.section("idle")
    for count in (1, 2):
        figures.add({"bytes": count}, {"perseus": Times([1.0])})
        figures.save()
        assert len(contents(file)["rows"]) == count
    idle.add({"work": "idle"}, {"perseus": Times([2.0])})
    idle.save()
    found = contents(file)
    assert [row["median"] for row in found["idle"]] == [2.0]
    assert (found["batch"], found["finished"]) == (32, False)
    figures.save(finished=True)
    assert contents(file)["finished"]
    # There is none on one processor, or where other tests compute on all of them.
    assert all(one is None or one > 1 for one in contents(file)["core_distances"])
    assert list(tmp_path.iterdir()) == [file]


def test_without_a_file_nothing_is_saved(report: ModuleType, tmp_path: Path) -> None:
    report.Report("latency").save(finished=True)


NOBODY = {"horovod mpi": Times(reason="openmpi is not there: make peers")}


def test_a_plot_of_nothing_ends_with_a_word(report: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "figures.svg"
    figures = report.Report("latency")
    figures.add({"bytes": 4, "ranks": 2}, NOBODY)
    with pytest.raises(SystemExit, match="nothing was measured that could be drawn"):
        importlib.import_module("latency").draw(figures.content(), file)
    assert not file.exists()


def test_a_plot_of_steps_that_nobody_took_ends_with_a_word(tmp_path: Path) -> None:
    training_step = importlib.import_module("contest.training_step")
    rows = [{"work": "step of vgg16", "median": None, "exposed": None}, {"work": "no step"}]
    with pytest.raises(SystemExit, match="nothing was measured that could be drawn"):
        training_step.draw_exposed(rows, tmp_path / "figures.svg")


def test_a_plot_of_a_tuner_that_has_not_ended_ends_with_a_word(tmp_path: Path) -> None:
    tuning = importlib.import_module("tuning")
    with pytest.raises(SystemExit, match="nothing was measured that could be drawn"):
        rows = [{"work": "allreduce", "median": 1.0}]
        tuning.draw({"rows": rows}, tmp_path / "figures.svg")


@pytest.mark.parametrize("state", ["", "-dirty"])
def test_a_dirty_tree_is_told_at_the_start(
    report: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: str,
) -> None:
    monkeypatch.setattr(report, "_commit", lambda: f"abc1234{state}")
    report.Report("latency")
    assert capsys.readouterr().err == ""
    report.Report("latency", file=tmp_path / "figures.json")
    assert ("WARNING: tracked files differ" in capsys.readouterr().err) == bool(state)


def test_a_device_is_no_file(report: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(report, "--json", "/dev/null")
    assert "/dev/null cannot be written" in capsys.readouterr().err
