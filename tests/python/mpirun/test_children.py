"""What a process that a rank starts can say to MPI's launcher: pytest tests/python/mpirun."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if shutil.which("mpirun") is None:
    pytest.skip("there is no mpirun on the path", allow_module_level=True)

#: A forked child and a program tell MPICH's launcher, if it is that, to end the job.
ABORTS = """
import os, subprocess, sys, numpy
import perseus_core as core
say = '''
import os
if (fd := os.environ.get("PMI_FD")):
    try: os.write(int(fd), b"cmd=abort exitcode=77\\\\n")
    except OSError: pass
'''
core.init()
if core.rank() == 0:
    if (child := os.fork()) == 0:
        exec(say)
        os._exit(0)
    os.waitpid(child, 0)
    subprocess.run([sys.executable, "-S", "-c", say], close_fds=False, check=True)
for step in range(20): core.allreduce(numpy.ones(9), name="step")
core.shutdown()
sys.stdout.write("well\\n")
"""


@pytest.mark.parametrize(
    "launcher",
    [["mpirun", "-np", "2"], [sys.executable, "-m", "perseus.run", "--mpi", "-np", "2"]],
    ids=["mpirun", "perseusrun --mpi"],
)
def test_a_child_of_a_rank_cannot_have_mpirun_end_the_job(
    launcher: list[str], tmp_path: Path
) -> None:
    (tmp_path / "aborts.py").write_text(ABORTS)
    result = subprocess.run(
        [*launcher, sys.executable, str(tmp_path / "aborts.py")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well") == 2
