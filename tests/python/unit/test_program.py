"""Tests what perseusrun says of a Python that lacks Perseus, and which script a command runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perseus.run import program


def perseusrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perseus.run", "-np", "1", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python that finds no installed package, in a folder of its own."""
    python = tmp_path / "bare" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    return python


def test_another_python_that_has_perseus_is_nothing_to_speak_of(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    result = perseusrun(tmp_path, str(python), "-c", "print('well')")
    assert (result.stdout, result.stderr) == ("[0]<stdout>:well\n", "")


def test_a_python_within_a_program_that_lacks_perseus_is_spoken_of_at_the_end(
    tmp_path: Path, bare_python: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\nexec {bare_python} -c 'import perseus.torch'\n")
    script.chmod(0o755)
    result = perseusrun(tmp_path, "./run.sh")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "perseusrun: the program's Python has no perseus; this perseusrun belongs to "
        f"{sys.executable}: use that, or install Perseus for the other"
    )


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python", "train.py", "other.py"], "train.py"),
        (["/usr/bin/python3.11", "-u", "-X", "dev", "train.py"], "train.py"),
        (["python", "-c", "pass", "train.py"], None),
        (["python", "-m", "train"], None),
        (["python", "-"], None),
        (["python"], None),
        (["bash", "train.py"], None),
    ],
)
def test_the_script_of_a_command_is_found(command: list[str], script: str | None) -> None:
    assert program.script_of(command) == script
