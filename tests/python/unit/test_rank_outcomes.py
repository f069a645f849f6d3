"""Tests which ranks are to be ended, and which have been left behind."""

from __future__ import annotations

from perseus.run.rank_outcomes import RankOutcomes


def test_a_rank_is_ended_once_all_others_have_lost_it() -> None:
    outcomes = RankOutcomes(goes_on=True)
    running = {0, 1, 2, 3}
    assert not outcomes.blame(0, [2], is_lost=True, running=running)
    assert not outcomes.blame(3, [2], is_lost=True, running=running)
    assert outcomes.blame(1, [2], is_lost=True, running=running)


def test_nobody_is_ended_where_each_side_has_lost_the_other() -> None:
    outcomes = RankOutcomes(goes_on=True)
    blames = [(0, 2), (2, 0), (1, 2), (3, 0)]
    for rank, culprit in blames:
        assert not outcomes.blame(rank, [culprit], is_lost=True, running=range(4))
    # Rank 0 is through; its neighbour must not be taken for left behind.
    assert not outcomes.have_been_given_up([1, 2, 3])
    assert outcomes.have_been_given_up([2])


def test_ranks_that_take_no_part_are_ended_together() -> None:
    outcomes = RankOutcomes(goes_on=True)
    assert not outcomes.blame(0, [1, 3], is_lost=True, running=range(4))
    assert outcomes.blame(2, [1, 3], is_lost=True, running=range(4))
    assert outcomes.why(0) == (
        "blaming rank 1, which is still running and rank 3, which is still running"
    )


def test_nobody_is_ended_where_the_others_do_not_blame_the_same_ranks() -> None:
    outcomes = RankOutcomes(goes_on=True)
    assert not outcomes.blame(0, [1, 3], is_lost=True, running=range(4))
    assert not outcomes.blame(2, [3], is_lost=True, running=range(4))


def test_nobody_is_ended_in_a_job_that_one_failure_ends() -> None:
    outcomes = RankOutcomes(goes_on=False)
    assert not outcomes.blame(0, [1], is_lost=True, running=range(2))
    assert outcomes.have_been_given_up([1])


def test_what_was_said_before_a_meeting_is_void_after_it() -> None:
    outcomes = RankOutcomes(goes_on=True)
    assert not outcomes.blame(1, [2], is_lost=True, running={0, 1, 2})
    outcomes.exited(1, -9)
    outcomes.met([0, 2])
    outcomes.exited(0, 0)
    assert not outcomes.have_been_given_up([2])
    # Blame from before the meeting does not add to blame from after it.
    outcomes = RankOutcomes(goes_on=True)
    assert not outcomes.blame(0, [2], is_lost=True, running={0, 1, 2})
    outcomes.met([0, 1, 2])
    assert not outcomes.blame(1, [2], is_lost=True, running={0, 1, 2})
    assert outcomes.blame(0, [2], is_lost=True, running={0, 1, 2})


def test_who_has_left_is_not_ended() -> None:
    outcomes = RankOutcomes(goes_on=True)
    assert not outcomes.blame(0, [1], is_lost=False, running=range(2))
    assert not outcomes.have_been_given_up([1])
    assert outcomes.is_victim(0)
    outcomes.exited(1, 0)
    assert outcomes.why(0) == "blaming rank 1, which had already exited with code 0"
