"""Files that benchmarks/ write are looked at before anything is measured."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
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
