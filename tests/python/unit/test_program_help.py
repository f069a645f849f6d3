"""Every program of the repository answers --help, and does nothing else then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("scripts", "benchmarks", "tests/chaos", "tests/soak")
PROGRAMS = sorted(
    str(file.relative_to(ROOT))
    for folder in FOLDERS
    for file in (ROOT / folder).glob("*.py")
    if '__name__ == "__main__"' in file.read_text()
)


def test_there_are_programs() -> None:
    assert len(PROGRAMS) > 30


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_answers_help(program: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / program), "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
    assert len(done.stdout) > 100
    assert not list(tmp_path.iterdir())
