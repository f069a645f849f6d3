"""What the launcher takes for its own stdout and stderr."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from perseus.run.output import Output


class Notebook:
    """As Jupyter's: has no bytes beneath, and the descriptor is where the server writes its log."""

    def __init__(self, log: io.FileIO):
        self.shown = ""
        self._log = log

    def write(self, text: str) -> None:
        self.shown += text

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._log.fileno()


def test_a_notebook_shows_the_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as log:
        notebook = Notebook(log)
        monkeypatch.setattr(sys, "stdout", notebook)
        output = Output(2)
        output.write(0, "stdout", b"hello\n")
        output.close()
        assert notebook.shown == "[0]<stdout>:hello\n"
    assert (tmp_path / "log").read_bytes() == b""


def test_a_stream_in_memory_gets_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = io.StringIO()
    monkeypatch.setattr(sys, "stderr", memory)
    output = Output(2)
    output.say("perseusrun: hello")
    output.close()
    assert memory.getvalue() == "perseusrun: hello\n"


def test_output_goes_nowhere_if_there_is_no_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    output = Output(2)
    output.write(0, "stdout", b"hello\n")
    output.close()
