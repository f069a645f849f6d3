"""Tests that nothing that a benchmark has started outlives it, however it ends."""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
PROGRAMS = [file for file in sorted(BENCHMARKS.glob("*.py")) if file.stem != "prepare_peers"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PROGRAM = """
import signal
from contest.conductor import Conductor

with Conductor(["perseus numpy"], ranks=2) as contest:
    print(*contest.pids("perseus numpy"), flush=True)
    signal.pause()
"""


OF_REAL_RANKS = """
import signal
from contest import ending
from contest.ranks import run

def wait():
    print("up", flush=True)
    signal.pause()

with ending.by_exception():
    run(wait, args=(), num_proc=1)
"""


def not_ignored() -> None:
    """Sets signals as in a foreground job, wherever the tests run."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def start(text: str) -> tuple[subprocess.Popen[str], str]:
    """Starts a program; returns it and the first line that it prints."""
    program = subprocess.Popen(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=not_ignored,
    )
    assert program.stdout
    return program, program.stdout.readline()


def gone(pid: int) -> bool:
    """Returns whether a process has ended, or is a zombie because its parent is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    "numbers",
    [
        [signal.SIGINT],
        [signal.SIGINT, signal.SIGINT],
        [signal.SIGTERM, signal.SIGINT],
        [signal.SIGHUP],
        [signal.SIGKILL],
    ],
    ids=lambda numbers: "-".join(number.name for number in numbers),
)
def test_no_stopped_rank_outlives_a_run_that_is_ended(numbers: list[signal.Signals]) -> None:
    program, line = start(PROGRAM)
    pids = [int(word) for word in line.split()]
    assert len(pids) == 2
    for number in numbers:
        program.send_signal(number)
    _, errors = program.communicate(timeout=30)
    if signal.SIGKILL not in numbers:
        assert program.returncode in [128 + number for number in numbers]
        assert errors == ""
    while not all(map(gone, pids)):  # the kernel's signal arrives when it arrives
        time.sleep(0.001)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_real_ranks_that_are_ended_leave_no_traceback(number: signal.Signals) -> None:
    program, line = start(OF_REAL_RANKS)
    assert "up" in line
    program.send_signal(number)
    _, errors = program.communicate(timeout=30)
    assert program.returncode == 128 + number
    assert f"{number.name}: ending 1 ranks" in errors
    assert "Traceback" not in errors


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield importlib.import_module("contest.ending")
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_is_ended_quietly_whatever_it_does(
    ending: ModuleType, monkeypatch: pytest.MonkeyPatch, program: Path
) -> None:
    def interrupted(_: argparse.ArgumentParser) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", interrupted)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as raised:
        runpy.run_path(str(program), run_name="__main__")
    assert raised.type is SystemExit
    assert raised.value.code == 130


def test_only_the_first_signal_raises_and_none_does_within_a_clean_up(
    ending: ModuleType,
) -> None:
    done = False
    with pytest.raises(SystemExit) as raised, ending.by_exception():
        with ending.held_back():
            os.kill(os.getpid(), signal.SIGHUP)
            done = True
        pytest.fail("the signal was lost")
    assert done
    assert raised.value.code == 128 + signal.SIGHUP
    with ending.by_exception():
        with pytest.raises(SystemExit) as raised:
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert raised.value.code == 130


def test_a_signal_that_is_ignored_stays_so(ending: ModuleType) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ending.by_exception():
        os.kill(os.getpid(), signal.SIGHUP)
