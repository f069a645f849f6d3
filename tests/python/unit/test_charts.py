"""Tests that charts show what was measured, and every contender in the same way."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import skip_or_fail

ROOT = Path(__file__).resolve().parents[3]
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"
#: Where `make pictures` and CI install matplotlib.
DRAWING = ROOT / "build/pictures/bin/python"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def appearance() -> ModuleType:
    return importlib.import_module("contest.appearance")


@pytest.fixture
def charts() -> ModuleType:
    return importlib.import_module("contest.charts")


@pytest.fixture
def python_that_draws() -> str:
    if importlib.util.find_spec("matplotlib"):
        return sys.executable
    if not DRAWING.exists():
        skip_or_fail("matplotlib is missing: make pictures")
    return str(DRAWING)


def redraw(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [python, str(BENCHMARKS / "redraw.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_stored_charts_are_what_the_stored_measurements_give(python_that_draws: str) -> None:
    done = redraw(python_that_draws, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_chart_that_is_not_of_its_measurements_is_noticed(
    python_that_draws: str, tmp_path: Path
) -> None:
    shutil.copy(RESULTS / "latency.json", tmp_path)
    shutil.copy(RESULTS / "calls.json", tmp_path)
    shutil.copy(RESULTS / "calls.svg", tmp_path)
    shutil.copy(RESULTS / "training.svg", tmp_path)
    content = json.loads((tmp_path / "calls.json").read_text())
    content["rows"][0]["median"] *= 2
    (tmp_path / "calls.json").write_text(json.dumps(content))
    done = redraw(python_that_draws, "--check", "--results", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "calls.svg is not what the measurements give",
        "latency.svg is missing",
        "training.svg is drawn from no measurements",
        "make pictures draws them anew",
    ]


def test_a_result_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    done = redraw(sys.executable, "latencies")
    assert done.returncode == 2
    assert "NAME is latencies; it must be one of bandwidth, c10d, c10d-hosts, calls," in done.stderr


def measured_together() -> dict[str, set[str]]:
    """Returns the labels of contenders that are drawn in one chart."""
    found: dict[str, set[str]] = {}
    for file in sorted(RESULTS.glob("*.json")):
        content = json.loads(file.read_text())
        # These compare no contenders, or are not drawn so.
        if content["program"] in ("tuning", "gpu_check", "pipeline"):
            continue
        for section in ("rows", "at_once"):
            for row in content.get(section, ()):
                work = "steps" if "exposed" in row else row.get("work", "")
                found.setdefault(f"{file.stem}, {section}, {work}", set()).add(row["contender"])
    return found


@pytest.mark.parametrize("labels", measured_together().values(), ids=measured_together().keys())
def test_no_two_contenders_of_a_chart_look_alike(appearance: ModuleType, labels: set[str]) -> None:
    looks = [appearance.look(label) for label in labels]
    assert len({(one.colour, one.dashes) for one in looks}) == len(labels)
    assert len({one.name for one in looks}) == len(labels)


def test_every_contender_that_there_is_has_a_look(appearance: ModuleType) -> None:
    launch = importlib.import_module("contest.launch")
    step = importlib.import_module("contest.training_step")
    training = importlib.import_module("training")
    calls = importlib.import_module("calls")
    known = [
        *launch.KNOWN.values(),
        *(launch.OPTIMIZER, *launch.IN_GRAPHS, *launch.ON_MXNET),
        *(*step.CONTENDERS, *training.CONTENDERS["torch"], *calls.CONTENDERS),
    ]
    schemes = importlib.import_module("contest.simulation").SCHEMES
    for label in (*(one.label for one in known), *schemes):
        appearance.look(label)
    with pytest.raises(ValueError, match="'unheard of'; it must have a row"):
        appearance.look("unheard of")


def test_another_build_looks_like_its_contender_but_for_its_line(appearance: ModuleType) -> None:
    ours, other = appearance.look("perseus C"), appearance.look("perseus C, other")
    assert other.colour == ours.colour
    assert (other.marker, other.dashes) != (ours.marker, ours.dashes)
    assert appearance.in_order(["torch gloo", "perseus C, other", "perseus C", "perseus"]) == [
        "perseus",
        "perseus C",
        "perseus C, other",
        "torch gloo",
    ]


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0.25, "0.25 µs"),
        (14.31, "14.3 µs"),
        (999.4, "999 µs"),
        (999.6, "1 ms"),
        (1084.49, "1.08 ms"),
        (857370.0, "857 ms"),
        (2.238e6, "2.24 s"),
    ],
)
def test_times_are_written_as_people_write_them(
    charts: ModuleType, microseconds: float, text: str
) -> None:
    assert charts.duration(microseconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(0.0012, "1.2 MB/s"), (0.5, "500 MB/s"), (9.97, "9.97 GB/s")]
)
def test_rates_are_written_as_people_write_them(rate: float, text: str) -> None:
    assert importlib.import_module("bandwidth").rate_text(rate) == text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("ranks", 1, "1 rank"),
        ("ranks", 1024, "1,024 ranks"),
        ("bytes", 64 << 20, "64 MiB"),
        ("work", "all 161 gradients of resnet50 at once", "ResNet-50"),
        ("work", "step of vgg16", "VGG-16"),
        ("work", "reducescatter", "reduce-scatter"),
        ("work", "broadcast", "broadcast"),
    ],
)
def test_cases_are_written_as_people_write_them(
    charts: ModuleType, key: str, value: Any, text: str
) -> None:
    assert charts.case_text(key, value) == text


def test_the_limits_of_links_are_written_as_people_write_them() -> None:
    caps = importlib.import_module("contest.training_step")._caps
    assert caps({"caps": "1000 Mbit/s, 250 a connection"}) == (
        "links of 1 Gbit/s, 250 Mbit/s a connection; "
    )
    assert caps({"caps": "500 Mbit/s, no cap on connections"}) == "links of 500 Mbit/s; "
    assert caps({}) == ""


def test_names_beside_lines_keep_their_order_and_a_distance() -> None:
    apart = importlib.import_module("contest.charts.lines").apart
    places = {"c": 52.0, "a": 10.0, "b": 50.0, "d": 51.0, "e": 200.0}
    moved = apart(places, 17)
    assert sorted(moved, key=moved.__getitem__) == ["a", "b", "d", "c", "e"]
    in_order = sorted(moved.values())
    assert all(after - one >= 17 - 1e-9 for one, after in itertools.pairwise(in_order))
    assert (moved["a"], moved["e"]) == (10.0, 200.0)
    assert moved["d"] == pytest.approx(51.0)


def test_what_was_measured_at_one_place_is_not_drawn_as_lines(
    monkeypatch: pytest.MonkeyPatch, charts: ModuleType, tmp_path: Path
) -> None:
    lines = importlib.import_module("contest.charts.lines")
    drawn: list[Any] = []
    monkeypatch.setattr(lines, "bars", lambda panels, *_, **__: drawn.extend(panels))
    rows = [
        {"contender": label, "ranks": 2, "bytes": 4, "median": 1.0}
        for label in ("perseus", "torch gloo")
    ]
    words = charts.Words("title", "below")
    panels = charts.panels(rows, "ranks")
    lines.lines(panels, tmp_path / "a.svg", words, x="bytes", scale=charts.DURATION)
    assert [panel.title for panel in drawn] == ["2 ranks, 4 B"]


def test_a_panel_is_named_by_what_differs(charts: ModuleType) -> None:
    rows = [
        {"work": work, "ranks": 2, "median": median}
        for work, median in (("done", 1.0), ("handed over", 1.0), ("failed", None))
    ]
    assert [panel.title for panel in charts.panels(rows, "work", "ranks")] == [
        "done",
        "handed over",
    ]
    assert [panel.title for panel in charts.panels(rows, "ranks")] == ["2 ranks"]
