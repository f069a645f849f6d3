"""The programs of examples/c: strict C99, right at any number of ranks, clean to valgrind and
AddressSanitizer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiling import compiled
from conftest import skip_or_fail

C = Path(__file__).resolve().parents[3] / "examples/c"


def built(source: Path, program: Path, *options: str) -> str:
    return str(compiled(source, program, "-std=c99", "-O1", "-g", *options))


def perseusrun(ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks)]
    return subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=240)


def ran_well(ranks: int, *command: str) -> str:
    result = perseusrun(ranks, *command)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("ranks", [1, 4])
def test_hello(tmp_path: Path, ranks: int) -> None:
    printed = ran_well(ranks, built(C / "hello.c", tmp_path / "hello"))
    total = ranks * (ranks + 1) // 2
    for rank in range(ranks):
        said = f"hello from rank {rank} of {ranks}: the sum is {total}"
        assert f"[{rank}]<stdout>:{said}" in printed


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_allreduce_gets_the_right_numbers(tmp_path: Path, ranks: int) -> None:
    printed = ran_well(ranks, built(C / "allreduce.c", tmp_path / "allreduce"))
    for rank in range(ranks):
        assert f"[{rank}]<stdout>:rank {rank} of {ranks}" in printed
        assert f"[{rank}]<stdout>:rank {rank}: all numbers are right" in printed


def test_allreduce_fails_on_a_wrong_number(tmp_path: Path) -> None:
    text = (C / "allreduce.c").read_text()
    wrong = tmp_path / "wrong.c"
    wrong.write_text(text.replace("reduce_op = PERSEUS_AVERAGE", "reduce_op = PERSEUS_SUM"))
    assert wrong.read_text() != text
    result = perseusrun(2, built(wrong, tmp_path / "wrong"))
    assert result.returncode == 1
    assert "conv1 is" in result.stderr


def test_training_is_one_process_with_whole_batches(tmp_path: Path) -> None:
    program = built(C / "training.c", tmp_path / "training")
    weights = []
    for ranks in range(1, 5):
        file = tmp_path / f"weights.{ranks}"
        assert f"{ranks} processes: 97." in ran_well(ranks, program, str(file))
        weights.append(np.loadtxt(file))
    for other in weights[1:]:
        np.testing.assert_allclose(other, weights[0], rtol=0, atol=1e-12)


def fewer_batches(tmp_path: Path) -> Path:
    """Returns a shorter training.c, for tools that slow it down; it has not learnt at the end."""
    text = (C / "training.c").read_text()
    source = tmp_path / "training.c"
    source.write_text(text.replace("BATCHES = 1500", "BATCHES = 20").replace("9 * TESTED", "0"))
    assert source.read_text() != text
    return source


def sources(tmp_path: Path) -> list[Path]:
    return [C / "hello.c", C / "allreduce.c", fewer_batches(tmp_path)]


@pytest.mark.long  # the sanitizer below looks for the same in the examples
def test_valgrind_finds_nothing(tmp_path: Path) -> None:
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        skip_or_fail("there is no valgrind: apt-get install valgrind")
    options = ["-q", "--leak-check=full", "--error-exitcode=9"]
    for source in sources(tmp_path):
        program = built(source, tmp_path / source.stem)
        assert perseusrun(2, valgrind, *options, program).returncode == 0, source.name


def test_address_sanitizer_finds_nothing(tmp_path: Path) -> None:
    for source in sources(tmp_path):
        options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        ran_well(2, built(source, tmp_path / source.stem, *options))
