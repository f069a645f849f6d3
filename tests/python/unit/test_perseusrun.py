"""perseusrun and perseus.run.run as a user has them, with the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import RunRanks

SUM = """
import numpy, perseus_core
perseus_core.init()
print(int(perseus_core.allreduce(numpy.array(perseus_core.rank() + 1), perseus_core.ReduceOp.SUM)))
"""


def perseusrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perseus.run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_find_each_other_and_sum(run_ranks: RunRanks, size: int) -> None:
    result = run_ranks(size, SUM)
    assert result.returncode == 0, result.stderr
    expected = size * (size + 1) // 2
    assert sorted(result.stdout.splitlines()) == [
        f"[{rank}]<stdout>:{expected}" for rank in range(size)
    ]


def test_two_names_of_this_machine_are_two_hosts(run_ranks: RunRanks) -> None:
    script = """
import perseus_core
perseus_core.init()
print(perseus_core.local_rank(), perseus_core.local_size(), perseus_core.cross_rank())
"""
    result = run_ranks(3, script, options=("-H", "localhost:2,127.0.0.1:1"))
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "[0]<stdout>:0 2 0",
        "[1]<stdout>:1 2 0",
        "[2]<stdout>:0 1 1",
    ]


def test_a_rank_that_dies_is_an_error_on_the_others(run_ranks: RunRanks) -> None:
    script = """
import os, signal, numpy, perseus_core
perseus_core.init()
try:
    # Rank 1 may have the first result before the others have it.
    perseus_core.allreduce(numpy.ones(4), name="during")
    if perseus_core.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
    perseus_core.allreduce(numpy.ones(4), name="during")
except RuntimeError as error:
    print("error:", error)
"""
    began = time.monotonic()
    result = run_ranks(3, script)
    assert time.monotonic() - began < 10
    assert result.returncode == 137
    assert "perseusrun: rank 1 on host localhost was killed by SIGKILL" in result.stderr
    errors = [line for line in result.stdout.splitlines() if "error:" in line]
    assert [line[:3] for line in sorted(errors)] == ["[0]", "[2]"]
    assert all("rank 1" in line for line in errors)


def test_a_malformed_setting_is_named_with_its_range(run_ranks: RunRanks) -> None:
    script = """
import os; os.environ["PERSEUS_ALLREDUCE_STREAMS"] = "many"  # perseusrun would refuse it
import perseus_core; perseus_core.init()"""
    result = run_ranks(2, script)
    assert result.returncode == 1
    assert "PERSEUS_ALLREDUCE_STREAMS" in result.stderr
    assert "1 .. 64" in result.stderr


def test_what_else_talks_between_the_ranks_uses_the_same_interfaces(run_ranks: RunRanks) -> None:
    script = """
import os
names = "PERSEUS_INTERFACES GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME NCCL_IB_DISABLE".split()
print(*[os.environ.get(name) for name in names])
"""
    options = ("--network-interfaces", "lo", "--tcp")
    environment = {**os.environ, "NCCL_SOCKET_IFNAME": "ib0"}
    result = run_ranks(1, script, options=options, environment=environment)
    assert result.stdout == "[0]<stdout>:lo lo ib0 1\n", result.stderr
    assert run_ranks(1, script).stdout == "[0]<stdout>:None None None None\n"


def test_output_is_kept_in_files(run_ranks: RunRanks, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    result = run_ranks(2, "print('hello')", options=("--output-filename", str(folder)))
    assert result.returncode == 0
    assert "[1]<stdout>:hello" in result.stdout
    assert (folder / "rank.1/stdout").read_text() == "hello\n"


def test_check_build_says_what_is_here() -> None:
    result = perseusrun("--check-build")
    assert result.returncode == 0
    assert "CPU" in result.stdout
    assert "MPI" in result.stdout


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        ("raise SystemExit(3)", 3, "rank 1 on host localhost exited with code 3"),
        ("raise RuntimeError('my own bug')", 1, "rank 1 on host localhost exited with code 1"),
        ("raise SystemExit(0)", 1, "blaming rank 1, which had already exited with code 0"),
    ],
)
def test_the_rank_that_ended_first_is_named_and_not_those_that_waited_for_it(
    run_ranks: RunRanks, ending: str, code: int, message: str
) -> None:
    script = f"""
import numpy, perseus_core
perseus_core.init()
for step in range(1000):
    perseus_core.allreduce(numpy.ones(100), name="gradient")
    if perseus_core.rank() == 1 and step == 20:
        {ending}
"""
    result = run_ranks(4, script)
    assert result.returncode == code
    assert message in result.stderr


def test_a_stalled_operation_is_reported_with_the_ranks_that_it_waits_for(
    run_ranks: RunRanks,
) -> None:
    script = """
import time, numpy, perseus_core
perseus_core.init()
if perseus_core.rank() == 2:
    another = perseus_core.allreduce_async(numpy.ones(1), name="another")
    time.sleep(4)
perseus_core.allreduce(numpy.ones(1), name="lonely")
if perseus_core.rank() != 2:
    another = perseus_core.allreduce_async(numpy.ones(1), name="another")
another.wait()
"""
    result = run_ranks(3, script, environment={"PERSEUS_STALL_CHECK_TIME_SECONDS": "1"})
    assert result.returncode == 0, result.stderr
    reports = [line for line in result.stderr.splitlines() if "lonely" in line]
    assert any("2" in line for line in reports), result.stderr
    assert "rank 2 last submitted 'allreduce.another'" in result.stderr


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        ("import horovod.torch", True),
        ("import horovod_of_another_name", False),
        ("print(\"ModuleNotFoundError: No module named 'horovod'\"); exit(1)", False),
    ],
)
def test_who_needs_the_drop_in_is_told(run_ranks: RunRanks, script: str, hint: bool) -> None:
    result = run_ranks(2, script)
    assert result.returncode == 1
    assert ("perseusrun: the program is written for Horovod; with --drop-in" in result.stderr) == (
        hint
    )


def test_ends_quietly_when_nobody_reads_its_output_any_more() -> None:
    launcher = [sys.executable, "-m", "perseus.run", "-np", "2", "yes"]
    with subprocess.Popen(launcher, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        assert job.stdout is not None and job.stderr is not None
        assert job.stdout.readline().endswith(b"<stdout>:y\n")
        job.stdout.close()
        assert job.stderr.read() == b""
        assert job.wait(timeout=30) == 128 + signal.SIGPIPE
