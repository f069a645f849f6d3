"""Who is to be ended, and who has been left behind."""

from __future__ import annotations

from perseus.run.fates import Fates


def test_a_rank_is_ended_once_all_others_have_lost_it() -> None:
    fates = Fates(4, least=2)
    running = {0, 1, 2, 3}
    assert not fates.blame(0, 2, is_lost=True, running=running)
    assert not fates.blame(3, 2, is_lost=True, running=running)
    assert fates.blame(1, 2, is_lost=True, running=running)


def test_nobody_is_ended_where_each_side_has_lost_the_other() -> None:
    fates = Fates(4, least=2)
    blames = [(0, 2), (2, 0), (1, 2), (3, 0)]
    for rank, culprit in blames:
        assert not fates.blame(rank, culprit, is_lost=True, running=range(4))
    # Rank 0 is through; its neighbour must not be taken for left behind.
    assert not fates.have_been_given_up([1, 2, 3], left_out=[])
    assert not fates.have_been_given_up([1, 2, 3], left_out=[2, 3])
    assert fates.have_been_given_up([2, 3], left_out=[2, 3])


def test_without_the_option_nobody_is_ended() -> None:
    fates = Fates(2, least=None)
    assert not fates.blame(0, 1, is_lost=True, running=range(2))
    assert fates.have_been_given_up([1], left_out=[])


def test_what_was_said_before_a_meeting_is_void_after_it() -> None:
    fates = Fates(3, least=2)
    assert not fates.blame(1, 2, is_lost=True, running={0, 1, 2})
    fates.exited(1, -9)
    assert fates.fail([1])
    fates.met([0, 2])
    fates.exited(0, 0)
    assert not fates.have_been_given_up([2], left_out=[])
    # What has not been said anew does not count with what is.
    fates = Fates(3, least=2)
    assert not fates.blame(0, 2, is_lost=True, running={0, 1, 2})
    fates.met([0, 1, 2])
    assert not fates.blame(1, 2, is_lost=True, running={0, 1, 2})
    assert fates.blame(0, 2, is_lost=True, running={0, 1, 2})


def test_who_has_left_is_not_ended() -> None:
    fates = Fates(2, least=1)
    assert not fates.blame(0, 1, is_lost=False, running=range(2))
    assert not fates.have_been_given_up([1], left_out=[])
    assert fates.is_victim(0)
    fates.exited(1, 0)
    assert fates.why(0) == "for want of rank 1, which had ended before with code 0"
