"""Tests `make gpu-check`, as far as that is possible without a GPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "scripts/gpu_check.py"
OF_THE_GPU = "(test_torch_cuda or test_cupy)"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("gpu_check")
    monkeypatch.setattr(module, "LOGS", tmp_path)
    monkeypatch.setattr(module.gpu_build, "FOLDER", tmp_path)
    return module


def step(check: ModuleType, script: str, **options):
    return check.Step(
        "kernels", "a script", 60, lambda _: [sys.executable, "-c", script], **options
    )


def outcome(check: ModuleType, tmp_path: Path, script: str, limit: float = 60, **options):
    context = check.Context(False, check.gpu_nccl.Found(None), tmp_path / "figures.json")
    return check.run(step(check, script, **options), context, limit)


def test_it_names_its_steps() -> None:
    command = [sys.executable, str(PROGRAM), "--list", "--only", "torch-1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["build", "torch-1"]


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PERSEUS_GPU_CHECK_DEVICE", None)
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("gpu-check: there is no GPU that ")
    assert done.stderr.count("\n") == 1


def test_a_steps_figures_are_kept(check: ModuleType, tmp_path: Path) -> None:
    script = """print('{"gpu": "a", "seed": 7}'); print('{"part": "b", "runs": 3}')
print('{"part": "c", "runs": 4}'); open("figures.json", "w").write('{"GB/s": 5}')"""
    done = outcome(check, tmp_path, script)
    assert done.result == check.PASSED
    assert done.figures == {"seed": 7, "runs": 7, "GB/s": 5}
    assert "GB/s 5" in check.table([done])


def test_a_step_that_fails_says_why(check: ModuleType, tmp_path: Path) -> None:
    done = outcome(check, tmp_path, "print('FAI' 'LED test_a.py::test_b'); exit(3)")
    assert done.result == check.FAILED
    assert done.reason == "exit status 3; FAILED test_a.py::test_b"


def test_a_step_is_ended_after_its_limit(check: ModuleType, tmp_path: Path) -> None:
    done = outcome(check, tmp_path, "import threading; threading.Event().wait()", limit=1)
    assert done.result == check.FAILED
    assert done.reason == "ended after its limit, 1 s"


def test_a_step_that_cannot_be_run_is_no_failure(check: ModuleType, tmp_path: Path) -> None:
    done = outcome(check, tmp_path, "", why_not=lambda _: "there is no such thing")
    assert (done.result, done.reason) == (check.NOT_RUN, "there is no such thing")
    check.save([done], {"cores": 2}, tmp_path / "kept.json", finished=True)
    assert json.loads((tmp_path / "kept.json").read_text())["rows"][0]["result"] == "not run"


@pytest.mark.parametrize("name", ["torch-2-staged", "cupy-2-staged"])
def test_its_tests_hold_for_tensors_in_cpu_memory(check: ModuleType, name: str) -> None:
    """They test no more than the other tests do, but this shows that they run.

    The steps' other files are those of tests/python/parallel.
    """
    pytest.importorskip("torch")
    (tests,) = [step for step in check.STEPS if step.name == name]
    command = map(str, tests.command(check.Context(False, check.gpu_nccl.Found(None))))
    done = subprocess.run(
        [*command, "-k", f"{OF_THE_GPU} and not of_every_type"],
        env={**os.environ, "PERSEUS_GPU_CHECK_DEVICE": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
