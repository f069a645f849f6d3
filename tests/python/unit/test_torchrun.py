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


def test_ranks_find_each_other_and_their_places(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(program)],
        env={key: value for key, value in os.environ.items() if not key.startswith("PERSEUS_")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["3 (2, 2, 1) [(0, 0, 0), (1, 1, 0)]"]
