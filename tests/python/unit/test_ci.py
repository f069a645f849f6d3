"""Tests scripts/ci.py: a part waits for the parts that it needs, and a table gives the results."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.fixture
def ci(scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Has ci.py write its logs elsewhere, because a run of CI may be running these tests."""
    module = importlib.import_module("ci")
    monkeypatch.setattr(module, "LOGS", tmp_path)
    return module


#: Makes the first file, and waits for the second, which another process makes.
MEETS = """
import os, sys, time
open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[2]): time.sleep(0.01)
"""


def python(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_all_that_a_part_needs_runs_before_it(ci: ModuleType) -> None:
    listed = [part.name for part in ci.all_parts()]
    assert len(set(listed)) == len(listed)
    for part in ci.all_parts():
        assert set(part.needs) <= set(listed[: listed.index(part.name)])
    assert [part.name for part in ci.chosen(["lint"])] == ["environment", "lint"]
    assert ci.chosen([]) == ci.all_parts()


def test_a_part_that_computes_runs_beside_one_that_waits(ci: ModuleType, tmp_path: Path) -> None:
    first, second, ended = (str(tmp_path / name) for name in ("first", "second", "ended"))
    begins_after = python("import os, sys; sys.exit(not os.path.exists(sys.argv[1]))")
    ends = python("import sys; open(sys.argv[1], 'w').close()")
    run = ci.Run(
        [
            ci.Part("one", ((*python(MEETS), first, second), (*ends, ended)), computes=True),
            ci.Part("also computes", ((*begins_after, ended),), computes=True),
            ci.Part("two", ((*python(MEETS), second, first),)),
        ]
    )
    run.all()
    assert [run.outcomes[part].passed for part in ("one", "also computes", "two")] == [True] * 3


def test_once_all_that_compute_have_begun_any_two_parts_run(ci: ModuleType, tmp_path: Path) -> None:
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    run = ci.Run(
        [
            ci.Part("computes", (python("pass"),), computes=True),
            ci.Part("one", ((*python(MEETS), first, second),)),
            ci.Part("two", ((*python(MEETS), second, first),)),
            ci.Part("three", (python("pass"),)),
        ]
    )
    run.all()
    assert [outcome.passed for outcome in run.outcomes.values()] == [True] * 4


def test_one_part_runs_at_a_time_if_asked_for(ci: ModuleType, tmp_path: Path) -> None:
    sleeps = python("import sys, time; time.sleep(0.3); open(sys.argv[1], 'w').close()")
    begins_after = python("import os, sys; sys.exit(not os.path.exists(sys.argv[1]))")
    ended = str(tmp_path / "ended")
    parts = [
        ci.Part("one", ((*sleeps, ended),), computes=True),
        ci.Part("two", ((*begins_after, ended),)),
    ]
    run = ci.Run(parts, one_at_a_time=True)
    run.all()
    assert run.outcomes["one"].passed
    assert run.outcomes["two"].passed


def test_parts_run_whatever_fails_and_a_log_is_shown_whole(
    ci: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    fails = python("print('first line'); print('last line'); raise SystemExit(3)")
    then = python("print('never')")
    run = ci.Run([ci.Part("fails", (fails, then)), ci.Part("goes on", (python(""),))])
    run.all()
    assert not run.outcomes["fails"].passed
    assert run.outcomes["goes on"].passed
    output = capfd.readouterr().out
    assert "first line\nlast line\n" in output
    assert "never\n" not in output.replace("print('never')", "")
    assert run.outcomes["fails"].results.failed == run.outcomes["goes on"].results.passed == 1


def test_a_part_that_has_grown_by_a_fifth_is_marked(ci: ModuleType) -> None:
    outcomes = {
        "as ever": ci.Outcome(True, 115, 230),
        "grown": ci.Outcome(True, 121, 150),
        "failed": ci.Outcome(False, 10, 10),
        "new": ci.Outcome(True, 10, 10),
    }
    reference = {
        "as ever": {"seconds": 100, "processor": 200},
        "grown": {"seconds": 100, "processor": 149},
        "failed": {"seconds": 6, "processor": 6},
    }
    rows = ci.table(outcomes, reference).splitlines()
    end = rows[0].index("tests") + len("tests")
    marks = {row[:20].strip(): row[end:].strip() for row in rows[1:]}
    assert marks["as ever"] == marks["new"] == ""
    assert marks["grown"] == "<-- over a fifth more seconds"
    assert marks["failed"] == "FAILED"  # 4 s more are noise


@pytest.mark.parametrize("times_as_long", [0.5, 1, 3])
def test_parts_are_compared_with_what_this_machine_takes(
    ci: ModuleType, times_as_long: float
) -> None:
    reference = {str(n): {"seconds": 60 + n, "processor": 120 - n} for n in range(6)}
    outcomes = {
        name: ci.Outcome(True, then["seconds"] * times_as_long, then["processor"] * times_as_long)
        for name, then in reference.items()
    }
    outcomes["3"].processor_seconds *= 1.3
    *rows, pace = ci.table(outcomes, reference).splitlines()
    assert [row for row in rows if "over a fifth" in row] == [rows[4]]
    assert rows[4].endswith("<-- over a fifth more processor")
    assert f"times {times_as_long:.2f} (seconds) and {times_as_long:.2f} (processor)" in pace
    for name in "01245":
        outcomes[name] = ci.Outcome(False, 1, 1)  # they tell nothing of the machine's pace
    assert "median part" not in ci.table(outcomes, reference)


def test_what_is_recorded_is_what_passed(
    ci: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ci, "REFERENCE", tmp_path / "reference.json")
    ci.record({"one": ci.Outcome(True, 10, 20), "two": ci.Outcome(True, 30, 40)})
    ci.record({"one": ci.Outcome(True, 11.4, 21.6), "two": ci.Outcome(False, 1, 1)})
    assert json.loads(ci.REFERENCE.read_text()) == {
        "one": {"seconds": 11, "processor": 22},
        "two": {"seconds": 30, "processor": 40},
    }


def test_the_slowest_tests_of_all_parts_are_listed(ci: ModuleType) -> None:
    results = importlib.import_module("test_results").Results
    outcomes = {
        name: ci.Outcome(True, 1, 1, results(seconds={f"{name}{i}": i + more for i in range(9)}))
        for name, more in (("a", 0.0), ("b", 0.5))
    }
    lines = ci.slowest(outcomes).splitlines()[1:]
    assert len(lines) == 10
    assert lines[0].split() == ["8.5", "s", "b:", "b8"]
    assert lines[1].split() == ["8.0", "s", "a:", "a8"]


@pytest.mark.timeout(600)
def test_results_of_pytest_are_counted(ci: ModuleType, tmp_path: Path) -> None:
    """The conftest.py that all Python tests share writes them."""
    folder = tmp_path / "tests"
    folder.mkdir()
    conftest = Path(__file__).resolve().parents[1] / "conftest.py"
    (folder / "conftest.py").write_text(conftest.read_text())
    (folder / "test_some.py").write_text(
        "import pytest\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert False\n"
        "def test_skips(): pytest.skip('why')\n"
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "def test_errs(broken): pass\n"
    )
    results = importlib.import_module("test_results")
    for options in ([], ["-n", "2"]):
        written = tmp_path / f"results{len(options)}"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *options, str(folder)],
            env={**os.environ, results.FOLDER: str(written)},
            stdout=subprocess.DEVNULL,
        )
        total = results.read(written)
        assert (total.passed, total.failed, total.skipped) == (1, 2, 1)
        assert len(total.seconds) == 4


def test_pip_settings_are_told_to_uv() -> None:
    translated = importlib.import_module("installer").translated
    listing = (
        "global.find-links='/from/file'\n"
        ":env:.find-links='/a /b'\n"
        "global.extra-index-url='file:///one file:///two'\n"
        "global.timeout='9'\n"
    )
    assert translated(listing) == {
        "UV_FIND_LINKS": "/a,/b",
        "UV_INDEX": "file:///one file:///two",
    }


def test_the_files_with_limits_of_time_exist() -> None:
    module = importlib.import_module("python_tests")
    for name in module.WITH_LIMITS:
        assert (Path(__file__).parent / name).exists()
    assert set(module.WITH_LIMITS_AND_ENDS) < set(module.WITH_LIMITS)


@pytest.mark.parametrize("statuses", [(-9, 0), (0, -9), (1, 0), (0, 1)])
def test_files_with_limits_fail_if_either_pytest_does(
    scripts: None, monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, int]
) -> None:
    module = importlib.import_module("python_tests")
    left = list(statuses)
    monkeypatch.setattr(module, "alone", lambda *_, **__: left.pop(0))
    assert module.limits() != 0
    assert not left


def titles(folder: str, *, all_files: bool) -> list[str]:
    module = importlib.import_module("python_tests")
    return [
        name for name, _ in module.of_ranks(folder, [1, 2, 3, 4], python="", all_files=all_files)
    ]


def test_files_run_at_fewer_numbers_of_ranks_unless_all_are_asked_for() -> None:
    module = importlib.import_module("python_tests")
    for pattern in module.ONLY_AT:
        assert list(module.TESTS.glob(pattern))
    for file, wanted in {
        "parallel/test_core_collectives.py": {1, 2, 3, 4},
        "tensorflow/test_operations.py": {1, 3},
        "tensorflow/test_keras.py": {2},
        "mxnet_adapter/test_operations.py": {3},
    }.items():
        folder = file.partition("/")[0]
        assert file in module.test_files(folder)
        ran_at = {ranks for ranks in range(1, 5) if file not in module.left_out(folder, ranks)}
        assert ran_at == wanted
    every = {folder: titles(folder, all_files=True) for folder in ("parallel", "keras_torch")}
    assert every["parallel"] == [f"parallel, {ranks} rank(s)" for ranks in (1, 2, 3, 4)]
    assert titles("parallel", all_files=False) == every["parallel"]
    # A folder of one such file has no tests at the other numbers.
    assert len(every["keras_torch"]) == 4
    assert titles("keras_torch", all_files=False) == ["keras_torch, 2 rank(s)"]
