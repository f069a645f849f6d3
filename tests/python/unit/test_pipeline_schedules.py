"""The schedules of pipelines: they work, and keep and leave idle no more than they promise."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from perseus.pipeline.schedules import FORWARD_ONLY, SCHEDULES, Action, Kind, find_schedule
from perseus.pipeline.simulation import play

CASES = [
    (name, ranks * each, ranks, microbatches)
    for name, ranks, microbatches in itertools.product(
        SCHEDULES, (1, 2, 3, 4, 7), (1, 2, 3, 4, 6, 7, 8, 12, 21, 28)
    )
    for each in ((2, 3) if name == "interleaved" else (1,))
    if microbatches >= ranks and (name != "interleaved" or microbatches % ranks == 0)
]


def seconds(action):
    """A whole backward takes twice as long as a forward, and as long as its two parts."""
    return 2.0 if action.kind is Kind.BACKWARD else 1.0


@pytest.mark.parametrize(("name", "stages", "ranks", "microbatches"), CASES)
def test_a_schedule_does_all_work_and_keeps_what_it_says(name, stages, ranks, microbatches):
    schedule = find_schedule(name, stages, ranks, microbatches)
    order = schedule.order(stages, ranks, microbatches)
    played = play(order, seconds)  # raises if ranks wait for each other
    kinds = (Kind.FORWARD, Kind.BACKWARD)
    if name == "zero-bubble":
        kinds = (Kind.FORWARD, Kind.INPUT, Kind.WEIGHT)
    everything = set(
        itertools.starmap(Action, itertools.product(kinds, range(stages), range(microbatches)))
    )
    assert set(played.spans) == everything
    assert all(action.stage % ranks == rank for rank, own in enumerate(order) for action in own)
    assert max(played.held) == schedule.held(stages, ranks, microbatches)
    assert played.bubble == pytest.approx(schedule.bubble(stages, ranks, microbatches))


def test_the_bubbles_of_four_stages_and_eight_microbatches():
    found = {
        name: schedule.bubble(8 if name == "interleaved" else 4, 4, 8)
        for name, schedule in SCHEDULES.items()
    }
    assert found == {
        "gpipe": 3 / 11,
        "1f1b": 3 / 11,
        "eager-1f1b": 3 / 11,
        "interleaved": 3 / 19,
        "zero-bubble": 3 / 27,
    }


def test_1f1b_keeps_as_many_activations_as_there_are_ranks_and_gpipe_all():
    held = {name: play(SCHEDULES[name].order(4, 4, 32)).held for name in ("gpipe", "1f1b")}
    assert held == {"gpipe": [32] * 4, "1f1b": [4, 3, 2, 1]}
    assert play(SCHEDULES["zero-bubble"].order(4, 4, 32)).held == [4] * 4


def test_uneven_stages_and_slow_messages_stop_no_schedule():
    for name, stages, ranks, microbatches in CASES:
        order = SCHEDULES[name].order(stages, ranks, microbatches)
        play(order, lambda action: 1.0 + action.stage % 3, message=5.0)


def test_eager_1f1b_hides_messages_that_1f1b_waits_for():
    """All that is left is the way of the first micro-batch's forward and the last one's backward,
    over three borders each."""
    took = {
        name: play(SCHEDULES[name].order(4, 4, 32), seconds, message=0.4).length
        for name in ("1f1b", "eager-1f1b")
    }
    assert took["eager-1f1b"] == pytest.approx(3 * 32 + 3 * 3 + 6 * 0.4)
    assert took["1f1b"] > took["eager-1f1b"] + 20 * 0.8


def test_the_package_and_its_schedules_import_no_framework():
    program = (
        "import sys, perseus.pipeline, perseus.pipeline.simulation; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_predictions_go_through_all_stages():
    played = play(FORWARD_ONLY.order(6, 3, 4))
    assert len(played.spans) == 24
    assert played.held  # which a prediction does not count


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (
            [[Action(Kind.BACKWARD, 0, 0), Action(Kind.FORWARD, 0, 0)]],
            "these actions wait for each other: B0.0",
        ),
        ([[Action(Kind.FORWARD, 1, 0)]], r"F1.0 needs F0.0, which is in no list"),
        ([[Action(Kind.FORWARD, 0, 0)] * 2], "F0.0 comes twice"),
        (
            # Each rank waits for what the other does only afterwards.
            [
                [
                    Action(Kind.FORWARD, 0, 0),
                    Action(Kind.FORWARD, 2, 1),
                    Action(Kind.FORWARD, 0, 1),
                ],
                [Action(Kind.FORWARD, 1, 0), Action(Kind.FORWARD, 1, 1)],
            ],
            "wait for each other: F2.1, F1.1",
        ),
    ],
)
def test_orders_that_do_not_work_are_found(order, expected):
    with pytest.raises(ValueError, match=expected):
        play(order)


@pytest.mark.parametrize(
    ("name", "stages", "ranks", "microbatches", "expected"),
    [
        ("2f2b", 4, 4, 8, "schedule is '2f2b'; it must be one of gpipe, 1f1b, eager-1f1b, "),
        (None, 4, 4, 8, "schedule is None; it must be one of"),
        ("1f1b", 8, 4, 8, "has 8 stages on 4 ranks; it must have one stage a rank"),
        ("gpipe", 3, 4, 8, "has 3 stages on 4 ranks; it must have one stage a rank"),
        ("interleaved", 4, 4, 8, "has 4 stages on 4 ranks; it must have two or more"),
        ("interleaved", 9, 4, 8, "it must have two or more stages on each rank, the same number"),
        ("interleaved", 8, 4, 6, "microbatches is 6; it must be a multiple of the pipeline's 4"),
        ("1F1B", 4, 4, 3, "microbatches is 3; it must be at least 4, one for each rank"),
    ],
)
def test_numbers_that_do_not_suit_a_schedule(name, stages, ranks, microbatches, expected):
    with pytest.raises(ValueError, match=expected):
        find_schedule(name, stages, ranks, microbatches)
