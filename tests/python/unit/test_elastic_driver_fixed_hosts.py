"""The driver of an elastic job whose hosts stay the same: nobody takes the slot of a lost rank."""

from __future__ import annotations

import pytest
from driver_job import Job, job, running

TOO_FEW = "too few ranks are left: {} of at least {}"


def fixed(size: int, least: int, **slots: int) -> Job:
    one = job(size, least, hosts_change=False, blacklist_by="slot")
    one.hosts(**slots)
    return one


def test_a_job_goes_on_while_enough_are_left_and_ends_at_once_then() -> None:
    one = running(fixed(4, 3, a=2, b=2))
    one.driver.ended(1, "exited with code 1")
    one.ready(0, 2, 3)
    assert one.world == [0, 2, 3]
    one.driver.ended(2, "exited with code 1")
    assert one.ends == []  # the others have not noticed it yet
    one.ready(0)
    assert one.ends == [TOO_FEW.format(2, 3)]


def test_a_rank_that_fails_before_the_first_world_is_not_waited_for() -> None:
    one = fixed(3, 2, a=3)
    one.ready(0)
    one.driver.ended(2, "exited with code 1")
    assert not one.worlds
    one.ready(1)
    assert one.world == [0, 1]


def test_where_slots_come_back_too_few_wait_for_them() -> None:
    one = job(2, 2, hosts_change=False, blacklist_by="slot", cooldown_range=(1, 1))
    running(one, a=2)
    one.driver.ended(1, "exited with code 1")
    one.ready(0)
    assert one.ends == []
    one.wait(2)
    one.ready(2)
    assert one.world == [0, 2]


def test_one_that_is_done_does_not_keep_the_others_from_meeting_again() -> None:
    one = running(fixed(4, 3, a=4))
    one.driver.ended(3, None)
    one.ready(0, 1, 2)
    assert one.world == [0, 1, 2]
    one.driver.ended(0, None)
    one.driver.ended(1, "exited with code 1")
    one.ready(2)
    assert one.world == [2]  # with two that are done, enough are left
    one.driver.ended(2, None)
    assert one.ends == [None]
    assert len(one.started) == 4


def test_too_few_that_are_done_or_left_are_a_failure() -> None:
    one = running(fixed(3, 2, a=3))
    one.driver.ended(0, None)
    one.driver.ended(1, "exited with code 1")
    assert one.ends == []
    one.driver.ended(2, "exited with code 1")
    assert one.ends == [TOO_FEW.format(1, 2)]


def test_once_a_training_function_has_returned_nobody_meets_again() -> None:
    one = running(fixed(2, 1, a=2))
    one.driver.began_function(0)
    one.driver.finished(0)
    one.ready(1)
    assert one.refused == []  # the other may begin another call
    one.driver.ended(0, None)
    assert one.refused == [1]


@pytest.mark.parametrize("waits", [False, True])
def test_a_program_may_take_its_time_while_nobody_waits(waits: bool) -> None:
    one = fixed(2, 2, a=2)
    one.wait(10_000)
    assert one.ends == []
    if not waits:
        one.driver.ended(0, None)
        one.wait(10_000)
        one.driver.ended(1, None)
        assert one.ends == [None]
        return
    one.ready(1)
    one.wait(600)
    one.wait(299)
    assert one.ends == []
    one.wait(1)
    assert one.ends == ["1 workers were ready after 900 s, on 2 slots; the job needs 2"]
