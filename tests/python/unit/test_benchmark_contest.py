"""The conductor of benchmarks/: turns, and contenders that fail."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from contest import core_distance
from contest.conductor import Conductor
from contest.launch import KNOWN, LIMITS, OPTIMIZER, Contender, variant

LABELS = ["perseus numpy", "another"]


@pytest.fixture
def contest() -> Iterator[Conductor]:
    contenders = ["perseus numpy", variant("perseus numpy", "another", PERSEUS_SPIN_US="0")]
    with Conductor(contenders, ranks=2, time_out=30) as conductor:
        yield conductor


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_each_contender_is_measured_in_every_turn_and_stopped_between_them(
    contest: Conductor,
) -> None:
    times = contest.measure("collective.allreduce", turns=3, iterations=4, elements=10)
    assert [len(times[label].microseconds) for label in LABELS] == [12, 12]
    assert all(time > 0 for label in LABELS for time in times[label].microseconds)
    pids = [pid for label in LABELS for pid in contest.pids(label)]
    assert len(set(pids)) == 4
    while [state(pid) for pid in pids] != ["T"] * 4:  # a signal arrives when it arrives
        time.sleep(0.001)


def test_a_case_is_measured_once_more_if_the_processors_were_moved_meanwhile(
    contest: Conductor, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([27.0, 155.0, 155.0, 150.0, 27.0, 155.0, 155.0, 27.0])
    monkeypatch.setattr(core_distance, "look", lambda: next(looks))
    once_more = contest.measure("collective.allreduce", turns=2, iterations=3, elements=10)
    for label in LABELS:
        assert once_more[label].core_distances == (155.0, 150.0)
        assert len(once_more[label].microseconds) == 6
    moved_again = contest.measure("collective.allreduce", turns=2, iterations=3, elements=10)
    said = "the processors' distance went from 155 to 27 ns meanwhile"
    assert core_distance.text(*moved_again[LABELS[0]].core_distances) == said


def test_a_case_waits_for_the_distance_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([155.0, 150.0, 27.0])
    monkeypatch.setattr(core_distance, "look", lambda: next(looks))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert core_distance.Wanted("near").wait() == 27.0
    assert next(looks, None) is None


def test_a_distance_that_does_not_come_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[float] = []

    def look() -> float:
        looks.append(85.4)
        return looks[-1]

    monkeypatch.setattr(core_distance, "look", look)
    wanted = core_distance.Wanted("near", patience=0.2)
    assert wanted.wait() == 85.4
    assert len(looks) == 2
    assert wanted.wait() == 85.4
    assert len(looks) == 3
    said = "the processors were not near within 0.2 s: they are 85 ns apart\n"
    assert capsys.readouterr().err == said


def test_work_that_fails_everywhere_leaves_the_contender_in(contest: Conductor) -> None:
    failed = contest.measure("collective.allreduce", turns=1, iterations=1, elements="many")
    assert all(failed[label].reason and failed[label].median is None for label in LABELS)
    times = contest.measure("collective.allreduce", turns=1, iterations=1, elements=10)
    assert all(times[label].reason is None for label in LABELS)


def test_a_contender_that_dies_is_out_with_its_reason_and_the_other_goes_on(
    contest: Conductor,
) -> None:
    os.kill(contest.pids("another")[1], signal.SIGKILL)
    for _ in range(2):
        times = contest.measure("collective.allreduce", turns=1, iterations=1, elements=10)
        assert times["another"].reason and times["another"].median is None
        assert times["perseus numpy"].reason is None
    assert contest.absent.keys() == {"another"}
    assert contest.pids("another") == []


def test_a_contender_that_cannot_start_is_absent_with_its_last_words() -> None:
    with Conductor([Contender("none", "ranks", "no_such_contender")], ranks=1) as conductor:
        assert "no_such_contender" in conductor.absent["none"]
        times = conductor.measure("collective.allreduce", turns=1, iterations=1, elements=10)
        assert times["none"].reason == conductor.absent["none"]


@pytest.mark.parametrize("elements", [1, 1000, 100_003])
def test_the_limit_of_memory_says_which_way_was_fastest(elements: int) -> None:
    with Conductor(LIMITS, ranks=2) as conductor:
        times = conductor.measure("collective.allreduce", turns=1, iterations=2, elements=elements)
    assert all(times[limit].reason is None for limit in LIMITS)
    assert "memcpy" in times["copy limit"].note
    assert any(way in times["memory limit"].note for way in ("memcpy", "in place", "streamed"))


def test_each_way_into_perseus_reduces_the_gradients_of_a_model() -> None:
    ways = [KNOWN["perseus"], KNOWN["perseus numpy"], OPTIMIZER]
    with Conductor(ways, ranks=2, time_out=60) as conductor:
        times = conductor.measure("step.gradients", turns=1, iterations=2, name="googlenet")
    assert {way.label: times[way.label].reason for way in ways} == {way.label: None for way in ways}


def test_no_process_outlives_the_contest() -> None:
    with Conductor(["perseus numpy"], ranks=2) as conductor:
        pids = conductor.pids("perseus numpy")
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
