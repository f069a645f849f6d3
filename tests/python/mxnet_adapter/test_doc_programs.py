"""The programs of docs/quickstart.md and docs/mxnet.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import perseus.mxnet.horovod as hvd

DOCS = Path(__file__).resolve().parents[3] / "docs"


def block(page: str, beginning: str) -> str:
    """Returns the one Python block of a page that begins with this text."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
    [found] = [each for each in blocks if each.startswith(beginning)]
    return found


def test_quick_start(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("quickstart.md", "import mxnet"), {})
    printed = capsys.readouterr().out
    found = re.fullmatch(rf"rank {hvd.rank()} of {hvd.size()}: mean loss (0\.\d+)\n", printed)
    assert found, printed
    assert float(found[1]) < 0.1


def test_the_programs_of_the_page_on_mxnet(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(block("mxnet.md", "import mxnet"), names)
    printed = capsys.readouterr().out
    found = re.fullmatch(rf"rank {hvd.rank()}: loss (\d\.\d+), bias (\S+)\n", printed)
    assert found, printed
    assert float(found[1]) < 0.1
    assert hvd.allgather_object(found[2]) == [found[2]] * hvd.size()

    exec(block("mxnet.md", "batches ="), names)
    assert (names["sampler"].epoch, names["sampler"].processed_num) == (2, 0)
    weights = names["net"].weight.data().asnumpy().tolist()
    assert hvd.allgather_object(weights) == [weights] * hvd.size()

    exec(block("mxnet.md", "import perseus.mxnet as"), names)
    with names["mx"].autograd.record():
        loss = names["net"](names["x"]).sum() * (hvd.rank() + 1)
    before = names["net"].bias.data().asscalar()
    loss.backward()
    batch = sum((rank + 1) * len(names["x"]) for rank in range(hvd.size()))
    names["trainer"].step(batch)
    # The gradient of the bias is 1 for each row and each time that the loss counts it.
    assert names["net"].bias.data().asscalar() == pytest.approx(before - 0.1, abs=1e-5)
