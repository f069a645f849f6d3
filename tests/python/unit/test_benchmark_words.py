"""Tests what benchmarks/idle.py and hook.py print about their measurements."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from perseus.torch.horovod.buckets import MANY

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    of_each_rank: list[Any],
) -> str:
    """Returns what a program prints if its ranks give these results."""
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


@pytest.mark.parametrize(("more", "told"), [(-1, False), (0, True)])
def test_gradients_that_are_handed_over_together_are_told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: int,
    told: bool,
) -> None:
    times = [{"no hook": 1.0, "an empty hook": 2.0, "perseus": 3.0}]
    out = printed(monkeypatch, capsys, f"hook --parameters {MANY + more}", times)
    assert ("gradients go 32 at a time" in out) == told


def test_by_default_every_gradient_is_handed_over_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = [{"no hook": 1.0, "an empty hook": 2.0, "perseus": 3.0}]
    out = printed(monkeypatch, capsys, "hook", times)
    assert out.startswith("microseconds of backward for each of 400 gradients")
