"""Tests that whoever is between the launcher and mpirun's agents can change nothing of what they
say: the connection ends, with an error that names the host and the rank, and so does the job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import mpirun_with_eavesdropper
import pytest
from standin_mpirun import write_mpirun

import perseus.run

REASON = (
    "arrived otherwise than it was sent: somebody in between has changed, left out, repeated or "
    "added something"
)
# Each rank says that it is there, and then 1 MiB. Rank 0 reads more than that first.
TALKS = """
import os, sys, time
rank = os.environ["RANK"]
open(os.path.join(sys.argv[1], rank), "w").write(str(os.getpid()))
if rank == "0":
    sys.stdin.read()
for i in range(1 << 15):
    sys.stdout.write(f"a line of 32 bytes or so, {i:5}\\n")
sys.stdout.flush()
time.sleep(1000)
"""
Between = Callable[..., None]


@pytest.fixture
def between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Between:
    """Puts a program in between that makes a change at the record `at`."""
    if not mpirun_with_eavesdropper.can_eavesdrop():
        pytest.skip("networks cannot be made here")

    def put(said_by: str, rank: int, change: str, at: int = 3) -> None:
        (tmp_path / "real").mkdir()
        real = write_mpirun(tmp_path / "real")
        mpirun_with_eavesdropper.write_mpirun(tmp_path, real, said_by, rank, change, at)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return put


class Talk:
    """Runs a job of two ranks that talk much, and sees that nothing is left of it."""

    def __init__(self, folder: Path) -> None:
        pids = folder / "pids"
        pids.mkdir()
        command = [sys.executable, "-m", "perseus.run", "--mpi", "-np", "2"]
        command += [sys.executable, "-c", TALKS, str(pids)]
        (folder / "input").write_text("input\n" * 200_000)
        with open(folder / "input") as stdin:
            done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=60)
        self.status = done.returncode
        self.errors = done.stderr
        self.lines = done.stdout.splitlines()
        deadline = time.monotonic() + 5
        for rank in pids.iterdir():
            while Path(f"/proc/{rank.read_text()}").exists():
                assert time.monotonic() < deadline, f"rank {rank.name} is left"
                time.sleep(0.01)

    def said_by(self, rank: int) -> list[str]:
        tag = f"[{rank}]<stdout>:"
        return [line.removeprefix(tag) for line in self.lines if line.startswith(tag)]


def assert_is_beginning(lines: list[str]) -> None:
    """The output of a rank of TALKS, perhaps with a last line that is cut."""
    expected = [f"a line of 32 bytes or so, {i:5}" for i in range(1 << 15)]
    assert lines[:-1] == expected[: max(len(lines) - 1, 0)]
    assert len(lines) < 1 << 15


CHANGES = ["flip", "shorten", "lengthen", "drop", "repeat", "swap", "inject"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_an_agent_says_cannot_be_changed(
    between: Between, tmp_path: Path, change: str
) -> None:
    between("agent", 1, change)
    talk = Talk(tmp_path)
    where = re.search(r"perseusrun: the connection to host \S+ \(rank 1\) ended: (.*)", talk.errors)
    assert where and where[1] == f"what its agent said {REASON}; ending the other 1"
    assert talk.status == 1
    assert_is_beginning(talk.said_by(1))


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_launcher_says_cannot_be_changed(
    between: Between, tmp_path: Path, change: str
) -> None:
    between("launcher", 0, change)
    talk = Talk(tmp_path)
    message = rf"perseusrun: rank 0 on host \S+: what perseusrun said {REASON}; ending the other 1"
    assert re.search(message, talk.errors), talk.errors
    assert talk.status == 127
    assert talk.said_by(0) == []  # it has not read its stdin to the end


@pytest.mark.parametrize("change", ["flip", "swap", "lengthen"])
def test_a_rank_is_not_started_by_somebody_else(
    between: Between, tmp_path: Path, change: str
) -> None:
    """The first record is the welcome, and the second the job."""
    between("launcher", 0, change, 1)
    talk = Talk(tmp_path)
    message = rf"perseusrun: rank 0 on host \S+: what perseusrun said {REASON}; ending the other 1"
    assert re.search(message, talk.errors), talk.errors
    assert talk.status == 127
    assert not (tmp_path / "pids/0").exists()


def test_a_job_that_does_not_arrive_is_missed(between: Between, tmp_path: Path) -> None:
    between("launcher", 1, "drop", 1)
    talk = Talk(tmp_path)
    assert re.search(rf"rank 1 on host \S+: what perseusrun said {REASON}", talk.errors), (
        talk.errors
    )
    assert talk.status != 0
    assert not (tmp_path / "pids/1").exists()


@pytest.mark.parametrize("said_by", ["agent", "launcher"])
def test_the_handshake_cannot_be_changed(between: Between, tmp_path: Path, said_by: str) -> None:
    """The first record of an agent follows the handshake, and nothing comes before it."""
    between(said_by, 1, "flip", 0)
    talk = Talk(tmp_path)
    assert talk.status != 0
    assert not (tmp_path / "pids/1").exists() or said_by == "agent"
    reason = REASON if said_by == "agent" else r"rank 1 on host \S+ is not started: "
    assert re.search(reason, talk.errors), talk.errors


def test_an_agent_that_called_another_address_is_not_heard(
    between: Between, tmp_path: Path
) -> None:
    between("elsewhere", 0, "none")
    talk = Talk(tmp_path)
    called = r"rank 1 on host \S+ is not started: it called perseusrun at 127\.0\.0\.1 port \d+, "
    assert re.search(called + "but its call came to another address: ", talk.errors), talk.errors
    assert talk.status != 0
    assert not list((tmp_path / "pids").iterdir())


def test_with_nothing_changed_the_job_is_well(between: Between) -> None:
    between("agent", 0, "none")
    assert perseus.run.run(pow, args=(2, 10), num_proc=2, use_mpi=True) == [1024, 1024]


@pytest.mark.parametrize("change", ["flip", "drop", "repeat", "swap", "inject", "cut"])
def test_no_part_of_a_result_is_taken_for_the_whole(between: Between, change: str) -> None:
    between("agent", 1, change)
    with pytest.raises(RuntimeError, match=r"the connection to host \S+ \(rank 1\) ended: "):
        perseus.run.run(bytes, args=(8 << 20,), num_proc=2, use_mpi=True)
