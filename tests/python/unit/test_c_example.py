"""The C program of examples/, built against the package and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/c"
STRICT = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def config(*flags: str) -> list[str]:
    command = [sys.executable, "-m", "perseus.config", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def compiler() -> str:
    found = shutil.which(os.environ.get("CC", "cc"))
    if found is None:
        pytest.skip("there is no C compiler: install one, or name it in CC")
    return found


def built(compiler: str, source: Path, program: Path) -> Path:
    flags = [*config("--cflags", "--libs"), "-pthread", "-lm"]
    subprocess.run([compiler, *STRICT, str(source), "-o", str(program), *flags], check=True)
    return program


def run(program: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perseus.run", "-np", str(ranks), str(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_c_example_is_c99_and_gets_the_right_numbers(compiler: str, tmp_path: Path) -> None:
    result = run(built(compiler, EXAMPLE / "allreduce.c", tmp_path / "allreduce"), 2)
    assert result.returncode == 0, result.stdout + result.stderr
    for rank in range(2):
        assert f"[{rank}]<stdout>:rank {rank} of 2" in result.stdout
        assert f"[{rank}]<stdout>:rank {rank}: all numbers are right" in result.stdout


def test_the_c_example_fails_on_a_wrong_number(compiler: str, tmp_path: Path) -> None:
    text = (EXAMPLE / "allreduce.c").read_text()
    wrong = tmp_path / "wrong.c"
    wrong.write_text(text.replace("reduce_op = PERSEUS_AVERAGE", "reduce_op = PERSEUS_SUM"))
    assert wrong.read_text() != text
    result = run(built(compiler, wrong, tmp_path / "wrong"), 2)
    assert result.returncode == 1
    assert "conv1 is" in result.stderr
