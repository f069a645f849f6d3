"""What benchmarks/dbn.py computes from what it measures."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("contest.layer_replay")


@pytest.mark.parametrize(("layers", "chunks"), [(1, 5), (4, 20), (8, 320)])
def test_equal_stages_take_as_long_as_the_formula_says(
    schedule: ModuleType, layers: int, chunks: int
) -> None:
    stages = [schedule.Stage(rank, 0, [2.0] * chunks) for rank in range(layers)]
    assert schedule.replay(stages, link=0.0, room=2) == 2 * (chunks + layers - 1)
    # The link's time comes once for each stage: it passes while the others work.
    expected = 2 * (chunks + layers - 1) + 0.5 * (layers - 1)
    assert schedule.replay(stages, link=0.5, room=2) == expected


def test_stages_of_one_rank_take_turns(schedule: ModuleType) -> None:
    stages = [schedule.Stage(rank, 0, [1.0] * 10) for rank in (0, 0, 1, 1)]
    assert schedule.replay(stages, link=0.0, room=1) == 2 * 11
    assert (
        schedule.replay([schedule.Stage(0, 0, [1.0] * 10) for _ in range(4)], link=9.0, room=1)
        == 40
    )


def test_the_slowest_stage_decides(schedule: ModuleType) -> None:
    times = [1.0, 3.0, 1.0]
    stages = [schedule.Stage(rank, 0, [one] * 10) for rank, one in enumerate(times)]
    assert schedule.replay(stages, link=0.0, room=1) == 1 + 3 * 10 + 1


def test_a_full_link_holds_the_sender_back(schedule: ModuleType) -> None:
    # The receiver stands still on its first chunk, for 10 s.
    slow_at_first = schedule.Stage(1, 0, [10.0, *[0.0] * 4])
    sender = schedule.Stage(0, 0, [1.0, 1.0, 1.0, 1.0, 8.0])
    # The last chunk may be begun when the fourth has been sent. With room for 3 that is at once.
    assert schedule.replay([sender, slow_at_first], link=0.0, room=3) == 4 + 8
    # With room for 1, the third waits for the second to be begun, at 11 s; so does all after it.
    assert schedule.replay([sender, slow_at_first], link=0.0, room=1) == 11 + 1 + 8


def test_a_delayed_stage_begins_at_its_chunk(schedule: ModuleType) -> None:
    lower = schedule.Stage(0, 0, [1.0] * 6)
    upper = schedule.Stage(1, 2, [1.0] * 4)
    assert schedule.replay([lower, upper], link=0.0, room=1) == 7
    greedy = schedule.Stage(1, 3, [1.0] * 3)
    assert schedule.replay([lower, greedy], link=0.0, room=1) == 7


def test_measured_times_are_repeated(schedule: ModuleType) -> None:
    assert schedule.cycled([1.0, 2.0], 5) == [1, 2, 1, 2, 1]


def test_the_interval_of_a_paired_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    paired = importlib.import_module("contest.paired")
    # Five differences with mean 3 and standard deviation sqrt(2.5): 2.776 * sqrt(2.5 / 5).
    mean, half = paired.difference([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3
    assert half == pytest.approx(2.776 * 0.5**0.5, rel=1e-3)
    assert paired.interval([4.0]) == (4.0, None)


def test_windows_of_speech_are_log_mel_energies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    data = importlib.import_module("contest.dbn_data")
    # A second of 1,000 Hz: all windows are alike, and loudest at the filters around it.
    tone = np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000).astype(np.float32)
    windows = data.windows_of(tone)
    assert windows.shape[1] == 440 and len(windows) > 10
    spectrum = windows[0].reshape(11, 40)
    top = 2595 * np.log10(1 + 4000 / 700)
    expected = 2595 * np.log10(1 + 1000 / 700) / top * 41 - 1
    assert np.abs(spectrum.argmax(1) - expected).max() <= 1
    # Silence is left out.
    half = np.concatenate([tone, np.zeros(8000, np.float32)])
    assert len(data.windows_of(half)) < 1.2 * len(windows)
