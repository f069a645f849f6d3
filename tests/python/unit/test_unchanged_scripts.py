"""Scripts of horovod_scripts/, which know of Horovod only, get the same results on Perseus."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "horovod_scripts"


def run(
    ranks: int, script: str, *arguments: str, folder: Path, options: tuple[str, ...] = ()
) -> list[str]:
    """Returns the lines that rank 0 prints; the job must end well. `options` are the launcher's."""
    launcher = [sys.executable, "-m", "perseus.run", "--drop-in", "-np", str(ranks), *options]
    command = [*launcher, sys.executable, str(SCRIPTS / script), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return re.findall(r"^\[0\]<stdout>:(.*)$", result.stdout, re.M)


def final_loss(lines: list[str]) -> float:
    return float(lines[-1].split()[-1])


def test_accumulating_on_three_ranks_is_accumulating_more_on_one(tmp_path: Path) -> None:
    # 3 ranks x 2 backward passes x 8 images a step, and 1 x 6 x 8: the same images.
    alone = ["--batches-per-allreduce", "6", "--warmup-epochs", "0"]
    shared = ["--batches-per-allreduce", "2", "--warmup-epochs", "0"]
    expected = run(1, "imagenet.py", *alone, "--checkpoint-format", "1-{epoch}", folder=tmp_path)
    lines = run(3, "imagenet.py", *shared, "--checkpoint-format", "3-{epoch}", folder=tmp_path)
    assert lines == expected
    assert final_loss(lines) < 0.9 < float(lines[0].split()[-1])


@pytest.mark.long  # an example resumes in CI, and scripts resume after a failure
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = run(2, "imagenet.py", "--workers", folder=tmp_path)
    assert len(whole) == 6
    (tmp_path / "checkpoint-3.pth.tar").unlink()
    (tmp_path / "checkpoint-2.pth.tar").unlink()
    resumed = run(2, "imagenet.py", "--workers", folder=tmp_path)
    assert resumed == whole[2:]


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [("--fp16-allreduce", "--gradient-predivide-factor", "2"), ("--use-adasum",)],
    ids=" ".join,
)
def test_compression_and_adasum_reach_as_low_a_loss(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert final_loss(run(3, "imagenet.py", *arguments, folder=tmp_path)) < 0.9


def test_elastic_training_ends_as_without_the_failure(tmp_path: Path) -> None:
    expected = run(3, "elastic.py", folder=tmp_path)
    assert len(expected) == 4
    lines = run(3, "elastic.py", "1", folder=tmp_path)
    assert "reset" in lines
    assert [line for line in lines if line != "reset"] == expected


def losses(lines: list[str]) -> list[float]:
    """Returns the losses of the epochs; the last line is the run's number of ranks, not a loss."""
    return [float(line.split()[-1]) for line in lines[:-1]]


@pytest.fixture(scope="module")
def tensorflow_alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses(run(1, "tensorflow2.py", folder=tmp_path_factory.mktemp("alone")))


def test_tensorflow_on_several_ranks_is_as_on_one(
    tensorflow_alone: list[float], tmp_path: Path
) -> None:
    lines = run(3, "tensorflow2.py", folder=tmp_path)
    assert losses(lines) == pytest.approx(tensorflow_alone, abs=2e-5)
    assert tensorflow_alone[-1] < 0.15 < 0.25 < tensorflow_alone[0]
    assert lines[-1] == "of 3"


@pytest.mark.long
def test_tensorflow_compressed_and_with_adasum(
    tensorflow_alone: list[float], tmp_path: Path
) -> None:
    found = losses(run(2, "tensorflow2.py", "--fp16-allreduce", "--use-adasum", folder=tmp_path))
    assert found[-1] == pytest.approx(tensorflow_alone[-1], rel=0.5)
    assert found != tensorflow_alone


def test_tensorflow_goes_on_without_a_lost_rank(
    tensorflow_alone: list[float], tmp_path: Path
) -> None:
    lines = run(4, "tensorflow2.py", "--elastic", folder=tmp_path, options=("--min-np", "1"))
    assert losses(lines) == pytest.approx(tensorflow_alone, abs=2e-5)
    assert lines[-1] == "of 3"
