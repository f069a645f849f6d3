"""Nothing that a benchmark has started outlives it, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

PROGRAM = """
import signal
from contest.conductor import Conductor

with Conductor(["perseus numpy"], ranks=2) as contest:
    print(*contest.pids("perseus numpy"), flush=True)
    signal.pause()
"""


def start() -> tuple[subprocess.Popen[str], list[int]]:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout
    return program, [int(word) for word in program.stdout.readline().split()]


def gone(pid: int) -> bool:
    """Whether it has ended: a rank whose parent is dead may be a zombie of nobody's."""
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
    program, pids = start()
    assert len(pids) == 2
    for number in numbers:
        program.send_signal(number)
    _, errors = program.communicate(timeout=30)
    assert program.returncode != 0, errors
    while not all(map(gone, pids)):  # the kernel's signal arrives when it arrives
        time.sleep(0.001)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from contest import ending

    return ending


def test_only_the_first_signal_raises_and_none_does_within_a_clean_up(ending) -> None:
    done = False
    with pytest.raises(SystemExit) as raised, ending.by_exception():
        with ending.held_back():
            os.kill(os.getpid(), signal.SIGHUP)
            done = True
        pytest.fail("the signal was lost")
    assert done
    assert raised.value.code == 128 + signal.SIGHUP
    with ending.by_exception():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_is_ignored_stays_so(ending) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending.by_exception():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
