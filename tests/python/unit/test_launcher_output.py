"""What perseusrun shows of its ranks, and what it says itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

#: Both ranks print, and then rank 1 fails.
FAILS = """
import os, pathlib, sys, time
print("hello")
print("\\r1%\\r2%", file=sys.stderr)
others = pathlib.Path(os.environ["READY"])
if os.environ["PERSEUS_RANK"] == "1":
    while not others.exists(): time.sleep(0.01)
    raise RuntimeError("no more")
others.touch()
"""
FAILED = "perseusrun: rank 1 on host localhost exited with code 1"


def perseusrun(
    *options: str, script: str = FAILS, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perseus.run", *options, sys.executable, "-S", "-c", script]
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")
    }
    with tempfile.TemporaryDirectory() as folder:
        variables = {**inherited, "READY": f"{folder}/ready", **environment}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables)


def own_lines(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("perseusrun:")]


def test_the_launcher_says_what_a_flag_does_not_do_unless_it_is_to_be_quiet() -> None:
    options = ("-np", "1", "--cycle-time-ms", "5", "--mpi-args=-q", "--tcp")
    assert len(own_lines(perseusrun(*options, script="pass"))) == 3
    assert perseusrun(*options, "--quiet", script="pass").stderr == ""


def test_the_launcher_says_how_many_threads_ranks_get_unless_it_is_to_be_quiet() -> None:
    # Empty counts as set; only env can remove it for a child of ours.
    launcher = ["env", "-u", "OMP_NUM_THREADS", sys.executable, "-m", "perseus.run", "-np", "2"]
    for options, said in (((), 1), (("--quiet",), 0)):
        command = [*launcher, *options, "true"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert len(own_lines(result)) == said


def test_a_quiet_launcher_shows_the_ranks_output_and_the_failure() -> None:
    result = perseusrun("-np", "2", "--quiet", "--cycle-time-ms", "5")
    assert result.returncode == 1
    assert sorted(result.stdout.splitlines()) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]
    assert "[1]<stderr>:RuntimeError: no more" in result.stderr
    (line,) = own_lines(result)
    assert line.startswith(FAILED)


def test_a_quiet_launcher_gives_no_hint() -> None:
    options = ("-np", "1")
    hint = "perseusrun: the program is written for Horovod"
    loud = perseusrun(*options, script="import horovod")
    assert any(line.startswith(hint) for line in own_lines(loud))
    assert hint not in perseusrun(*options, "--quiet", script="import horovod").stderr


def test_quiet_and_verbose_exclude_each_other() -> None:
    result = perseusrun("-np", "1", "--quiet", "--verbose")
    assert result.returncode == 2
    assert "--verbose: not allowed with argument --quiet" in result.stderr


def test_one_rank_is_shown_and_the_end_of_another_that_failed(tmp_path: Path) -> None:
    result = perseusrun("-np", "2", "--only-rank", "0", "--output-filename", str(tmp_path))
    assert result.returncode == 1
    assert result.stdout == "[0]<stdout>:hello\n"
    assert "[1]" not in result.stderr
    assert "[0]<stderr>:2%" in result.stderr
    failed, last = own_lines(result)
    assert failed.startswith(FAILED)
    assert last == "perseusrun: the last line of rank 1 on stderr: RuntimeError: no more"
    assert (tmp_path / "rank.1/stdout").read_text() == "hello\n"
    assert (tmp_path / "rank.1/stderr").read_bytes().startswith(b"\r1%\r2%\nTraceback")


def test_the_last_line_of_a_rank_that_is_shown_is_not_repeated() -> None:
    result = perseusrun("-np", "2", "--only-rank", "1")
    assert result.stdout == "[1]<stdout>:hello\n"
    assert result.stderr.count("RuntimeError: no more") == 1


@pytest.mark.parametrize("rank", ["2", "-1"])
def test_only_a_rank_of_the_job_can_be_shown(rank: str) -> None:
    result = perseusrun("-np", "2", f"--only-rank={rank}")
    assert result.returncode == 2
    assert f"--only-rank is {rank}; it must be from 0 to 1" in result.stderr


@pytest.mark.parametrize("seconds", ["-1", "soon", "1e9", "nan"])
def test_a_grace_that_makes_no_sense_is_refused(seconds: str) -> None:
    result = perseusrun("-np", "1", f"--grace={seconds}")
    assert result.returncode == 2
    assert "argument --grace: " in result.stderr


def test_without_tags_output_is_as_the_rank_wrote_it() -> None:
    result = perseusrun("-np", "2", "--no-tag", "--only-rank", "0")
    assert result.stdout == "hello\n"
    assert "\n2%\n" in f"\n{result.stderr}"


def test_tags_have_colours_in_a_pipe_if_that_is_forced() -> None:
    forced = perseusrun("-np", "1", script="print('x')", FORCE_COLOR="1")
    assert forced.stdout == "\x1b[36m[0]<stdout>:\x1b[mx\n"
    assert perseusrun("-np", "1", script="print('x')").stdout == "[0]<stdout>:x\n"
