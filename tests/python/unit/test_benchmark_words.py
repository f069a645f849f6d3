"""What benchmarks/idle.py and hook.py say of what they have measured."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    of_each_rank: list[Any],
) -> str:
    """By a program to which its ranks have given these results."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    name, *words = command.split()
    program = importlib.import_module(name)
    monkeypatch.setattr(program, "run", lambda *args, **options: of_each_rank)
    monkeypatch.setattr(sys, "argv", [name, *words])
    program.main()
    return capsys.readouterr().out


def test_a_part_of_a_second_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(monkeypatch, capsys, "idle --seconds 0.2", [0.001, 0.002])
    assert out.splitlines()[1] == "rank 1: 2.00 ms of CPU in 0.2 s"
