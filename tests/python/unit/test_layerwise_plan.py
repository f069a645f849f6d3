"""Where stages live and which chunks they work on."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from perseus.pipeline.layerwise.plan import assign, make_plan


def test_without_a_delay_all_stages_train_on_all_chunks() -> None:
    plan = make_plan(per_epoch=10, epochs=2, chunk=3, delay=0.0, stages=4)
    assert (plan.updates, plan.trained, plan.total) == (20, 7, 7)
    assert all(plan.trains(stage, chunk) for stage in range(4) for chunk in range(7))


def test_each_stage_trains_on_as_many_chunks_whatever_the_delay() -> None:
    for delay in (0.0, 0.1, 0.35, 1.0):
        plan = make_plan(per_epoch=9, epochs=3, chunk=2, delay=delay, stages=3)
        for stage in range(3):
            chunks = [number for number in range(plan.total) if plan.trains(stage, number)]
            assert len(chunks) == plan.trained == 14
            assert chunks[0] == plan.first(stage)
            seen = [batch for number in chunks for batch in plan.batches(number)]
            assert sorted(seen) == list(range(27))


def test_with_a_delay_of_all_chunks_nothing_overlaps() -> None:
    plan = make_plan(per_epoch=4, epochs=2, chunk=3, delay=1.0, stages=3)
    for number in range(plan.total):
        assert sum(plan.trains(stage, number) for stage in range(3)) == 1
    # Each stage sees the data in the order of greedy training.
    for stage in range(3):
        first = plan.first(stage)
        seen = [batch for number in range(first, first + 3) for batch in plan.batches(number)]
        assert seen == list(range(8))


def test_the_share_of_the_updates_grows_from_0_to_1() -> None:
    plan = make_plan(per_epoch=4, epochs=2, chunk=3, delay=0.5, stages=2)
    shares = [
        plan.share(1, number, position)
        for number in range(plan.total)
        if plan.trains(1, number)
        for position in range(len(plan.batches(number)))
    ]
    assert shares == [done / 7 for done in range(8)]
    assert make_plan(1, 1, 1, 0.0, 1).share(0, 0, 0) == 0


@pytest.mark.parametrize(
    ("stages", "ranks", "expected"),
    [(4, 1, [0, 0, 0, 0]), (4, 2, [0, 0, 1, 1]), (5, 3, [0, 0, 1, 1, 2]), (3, 3, [0, 1, 2])],
)
def test_blocks_are_as_even_as_they_can_be(stages: int, ranks: int, expected: list[int]) -> None:
    assert assign(stages, ranks) == expected


def test_blocks_may_be_given() -> None:
    assert assign(4, 2, [0, 1, 1, 1]) == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("ranks", "owners", "error"),
    [
        (5, None, "4 stages are for 5 ranks; there must be a stage for each rank"),
        (2, [0, 1], "owners has 2 entries; it must have one for each stage"),
        (2, [0, 1, 0, 1], r"owners is \[0, 1, 0, 1\]; it must name ranks 0 to 1, ascending"),
        (2, [0, 0, 0, 0], r"owners is \[0, 0, 0, 0\]; it must name ranks 0 to 1"),
        (2, [0, 0, 1, 2], r"owners is \[0, 0, 1, 2\]; it must name ranks 0 to 1"),
    ],
)
def test_blocks_that_make_no_sense(ranks: int, owners: list[int] | None, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        assign(4, ranks, owners)
