"""PyTorch's own launcher starts the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = """
import torch, perseus.torch.horovod as hvd
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum, name="total")
places = hvd.allgather_object((hvd.rank(), hvd.local_rank(), hvd.cross_rank()))
sizes = hvd.size(), hvd.local_size(), hvd.cross_size()
if hvd.rank() == 0:
    print(int(total), sizes, places)
hvd.shutdown()
"""


# Rank 0 dies at the first attempt, and leaves a child, as a data loader's worker may be left.
RESTARTED = """
import os, time, numpy, perseus_core as core
core.init()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 0 and core.rank() == 0:
    if os.fork() == 0:
        os.setsid()
        time.sleep(30)
    os._exit(5)
total = core.allreduce(numpy.ones(1), core.ReduceOp.SUM, name="total")[0]
print(f"attempt {attempt}: {total:g}", flush=True)
"""


# Rank 1 forks a child that calls init, as a data loader's worker may that imports the script.
CHILD = """
import os, numpy, perseus_core as core
core.init()
if core.rank() == 1:
    if (pid := os.fork()) == 0:
        try: core.init()
        except ValueError as error: print("child:", error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
total = core.allreduce(numpy.ones(1), core.ReduceOp.SUM, name="total")[0]
print(f"total: {total:g}", flush=True)
"""


def run(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(text)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options]
    # To a file: a child that is left would keep a pipe open.
    with (tmp_path / "stdout").open("w+") as stdout, (tmp_path / "stderr").open("w+") as stderr:
        result = subprocess.run(
            [*launcher, "--nproc-per-node", "2", str(program)],
            env={key: value for key, value in os.environ.items() if not key.startswith("PERSEUS_")},
            stdout=stdout,
            stderr=stderr,
            text=True,
            timeout=240,
        )
        for file in (stdout, stderr):
            file.seek(0)
        result.stdout, result.stderr = stdout.read(), stderr.read()
    return result


def test_ranks_find_each_other_and_their_places(tmp_path: Path) -> None:
    result = run(tmp_path, PROGRAM)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["3 (2, 2, 1) [(0, 0, 0), (1, 1, 0)]"]


def test_ranks_that_are_started_again_meet_though_a_child_is_left(tmp_path: Path) -> None:
    result = run(tmp_path, RESTARTED, "--max-restarts", "1")
    assert result.returncode == 0, result.stderr
    assert "attempt 0" not in result.stdout
    assert result.stdout.count("attempt 1: 2") == 2


def test_a_child_of_a_rank_cannot_take_its_place(tmp_path: Path) -> None:
    result = run(tmp_path, CHILD)
    assert result.returncode == 0, result.stderr
    assert "child: this process was started by process" in result.stdout
    assert "which is rank 1 of the job" in result.stdout
    assert result.stdout.count("total: 2") == 2
