"""Scripts that import horovod, run on Perseus."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perseus.dropin import MODULES, SITE, search_path

SCRIPT = """
import sys
import torch
import horovod
import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.mpi_ops import synchronize

hvd.init()
total = synchronize(hvd.allreduce_async(torch.ones(2) * (hvd.rank() + 1), op=hvd.Sum))
print(horovod.__version__, hvd.size(), total.tolist(), sys.argv[1:], __name__)
"""


def run(
    *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(environment or {})},
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_runs_unchanged(script: str) -> None:
    outcome = run("-m", "perseus.dropin", script, "--lr", "0.1")
    assert outcome.stdout == "0.28.1 1 [1.0, 1.0] ['--lr', '0.1'] __main__\n", outcome.stderr


def test_a_module_and_code_run_too(script: str) -> None:
    environment = {"PYTHONPATH": str(Path(script).parent)}
    outcome = run("-m", "perseus.dropin", "-m", "train", "x", environment=environment)
    assert outcome.stdout == "0.28.1 1 [1.0, 1.0] ['x'] __main__\n", outcome.stderr
    outcome = run("-m", "perseus.dropin", "-c", SCRIPT, "y")
    assert outcome.stdout == "0.28.1 1 [1.0, 1.0] ['y'] __main__\n", outcome.stderr


def test_under_the_launcher_and_in_the_programs_that_a_script_starts(script: str) -> None:
    starter = f"import subprocess, sys; subprocess.run([sys.executable, {script!r}], check=True)"
    outcome = run("-m", "perseus.run", "-np", "2", sys.executable, "-m", "perseus.dropin", "-c",
                  starter)  # fmt: skip
    expected = "<stdout>:0.28.1 2 [3.0, 3.0] [] __main__"
    lines = outcome.stdout.splitlines()
    assert sorted(lines) == [f"[0]{expected}", f"[1]{expected}"], outcome.stderr


def test_the_launcher_s_flag(script: str) -> None:
    outcome = run("-m", "perseus.run", "--drop-in", "-np", "2", sys.executable, script, "z")
    expected = "<stdout>:0.28.1 2 [3.0, 3.0] ['z'] __main__"
    lines = outcome.stdout.splitlines()
    assert sorted(lines) == [f"[0]{expected}", f"[1]{expected}"], outcome.stderr


def test_modules_are_ours_and_not_copies() -> None:
    lines = ["import importlib, horovod"]
    for theirs, ours in MODULES.items():
        lines.append(f"a = importlib.import_module({theirs!r})")
        lines.append(f"b = importlib.import_module({ours!r})")
        lines.append(f"assert a is b and b.__name__ == b.__spec__.name == {ours!r}, {theirs!r}")
    lines.append("import horovod.common.reduce_ops as a, perseus.common.reduce_ops as b")
    lines.append("assert a is b")
    outcome = run("-m", "perseus.dropin", "-c", "\n".join(lines))
    assert outcome.returncode == 0, outcome.stderr


def test_what_there_is_not_is_missing_as_any_module_is() -> None:
    outcome = run(
        "-m", "perseus.dropin", "-c",
        "import importlib.util as u; print(u.find_spec('horovod.spark')); import horovod.spark",
    )  # fmt: skip
    assert outcome.stdout == "None\n"
    assert "No module named 'horovod.spark'" in outcome.stderr


def test_without_it_there_is_no_horovod() -> None:
    outcome = run("-c", "import perseus.dropin, horovod")
    assert "No module named 'horovod'" in outcome.stderr


def test_an_installed_horovod_that_is_hidden_is_named(tmp_path: Path) -> None:
    info = tmp_path / "horovod-0.27.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.27.0\n")
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = 'theirs'")
    environment = {"PYTHONPATH": str(tmp_path)}
    code = "import horovod; print(horovod.__version__)"
    assert run("-c", code, environment=environment).stdout == "theirs\n"
    outcome = run("-m", "perseus.dropin", "-c", code, environment=environment)
    assert outcome.stdout == "0.28.1\n"
    assert f"not Horovod 0.27.0 in {package}" in outcome.stderr


def test_usage() -> None:
    assert run("-m", "perseus.dropin", "--help").stdout.startswith("python -m perseus.dropin")
    for wrong in ([], ["-m"], ["-c"]):
        outcome = run("-m", "perseus.dropin", *wrong)
        assert outcome.returncode == 1
        assert outcome.stderr.startswith("usage:")


def test_the_search_path_names_the_folder_once() -> None:
    assert search_path(None) == SITE
    assert search_path(f"a{os.pathsep}{SITE}{os.pathsep}b") == os.pathsep.join([SITE, "a", "b"])
