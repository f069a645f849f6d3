"""Stands in for mpirun in tests of `perseusrun --mpi`."""

from __future__ import annotations

import sys
from pathlib import Path

OPEN_MPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://example.org\n"

# Starts as many of the command as it is told, and waits for them.
MPIRUN = f"""#!{sys.executable}
import os, subprocess, sys
if sys.argv[1:] == ["--version"]:
    print({OPEN_MPI!r})
    sys.exit()
command = sys.argv[sys.argv.index({sys.executable!r}):]
size = int(sys.argv[sys.argv.index("-np") + 1])
environments = [{{**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)}} for rank in range(size)]
BODY
ranks = [subprocess.Popen(command, env=environment) for environment in environments]
sys.exit(max(rank.wait() for rank in ranks))
"""


def write_mpirun(folder: Path, body: str = "") -> Path:
    """Writes an mpirun that does `body` first, and returns it."""
    mpirun = folder / "mpirun"
    mpirun.write_text(MPIRUN.replace("BODY", body))
    mpirun.chmod(0o755)
    return mpirun
