"""The program of docs/quickstart.md for MXNet."""

from __future__ import annotations

import re
from pathlib import Path

import perseus.mxnet.horovod as hvd

PAGE = Path(__file__).resolve().parents[3] / "docs/quickstart.md"


def test_quick_start(capsys):
    [program] = re.findall(r"^```python\n(import mxnet.*?)^```$", PAGE.read_text(), re.M | re.S)
    exec(program, {})
    printed = capsys.readouterr().out
    found = re.fullmatch(rf"rank {hvd.rank()} of {hvd.size()}: mean loss (0\.\d+)\n", printed)
    assert found, printed
    assert float(found[1]) < 0.1
