"""How the driver of an elastic job lets drained workers go, and notices those that are silent."""

from __future__ import annotations

import pytest
from driver_job import job, running

from perseus.elastic.host_table import Change


def test_a_drained_host_leaves_at_a_border_and_is_not_used_while_it_is_found() -> None:
    one = running(job(4), a=2, b=2)
    assert [worker.number for worker in one.driver.drain("b")] == [2, 3]
    assert one.told == [(number, Change.REMOVED) for number in range(4)]
    one.ready(0, 2, 3, 1)
    assert one.refused == [2, 3]
    assert one.world == [0, 1]
    one.driver.ended(2, None)
    one.driver.ended(3, None)
    one.hosts(a=2, b=2)
    one.hosts(a=2, b=4)
    assert len(one.started) == 4
    assert not one.driver.table.is_blacklisted("b")
    one.hosts(a=2)
    one.hosts(a=2, b=1)
    assert one.places[4:] == [("b", 0)]
    assert one.killed == one.ends == []


def test_a_worker_that_asks_leaves_and_another_slot_is_used_in_its_place() -> None:
    one = running(job(2, most=2), a=2)
    one.hosts(a=2, b=1)
    assert len(one.started) == 2
    one.driver.drain_worker(1)
    assert one.places[2:] == [("b", 0)]
    one.ready(1, 0)
    assert one.refused == [1]
    assert one.world == [0]
    one.driver.ended(1, None)
    one.ready(2)
    one.ready(0)
    assert one.world == [0, 2]
    assert one.ends == []


def test_a_drained_worker_that_does_not_come_is_killed_and_no_host_is_left_out() -> None:
    one = running(job(2, timeout=60), a=1, b=1)
    one.driver.drain("b")
    one.wait_while_all_answer(59)
    assert one.killed == []
    assert one.driver.next_deadline() == one.now + 1
    one.wait(1)
    assert one.killed == [1]
    one.driver.ended(1, "was killed by SIGKILL")
    one.ready(0, failure="rank 1 was lost")
    assert one.world == [0]
    assert not one.driver.table.is_blacklisted("b")


def test_draining_below_the_least_waits_for_more_slots() -> None:
    one = running(job(2, least=2), a=1, b=1)
    one.driver.drain("b")
    one.ready(0, 1)
    one.driver.ended(1, None)
    assert len(one.worlds) == 1
    one.hosts(a=1, b=1, c=1)
    one.ready(2)
    assert one.world == [0, 2]


def test_a_job_whose_last_host_is_drained_ends_when_all_have_left() -> None:
    one = running(job(2), a=2)
    one.driver.drain("a")
    one.ready(0)
    assert one.refused == [0]
    one.driver.ended(0, None)
    assert one.ends == []  # worker 1 is in its step
    one.ready(1)
    assert one.ends == []
    one.driver.ended(1, None)
    assert len(one.ends) == 1
    assert "no worker is left" in str(one.ends[0])


def test_a_job_that_is_drained_starts_none_any_more_and_ends() -> None:
    one = running(job(1), a=1)
    one.driver.drain_all()
    one.hosts(a=1, b=1)
    one.driver.drain_all()
    one.ready(0)
    one.driver.ended(0, None)
    assert len(one.started) == len(one.ends) == 1


def test_a_job_that_is_drained_before_it_has_workers_ends() -> None:
    one = job(2)
    one.hosts(a=1)
    one.driver.drain_all()
    assert one.ends == ["it is drained before it has any workers"]


def test_workers_that_are_not_in_a_world_yet_are_drained_at_once() -> None:
    one = running(job(1, least=1), a=1)
    one.hosts(a=1, b=1, c=1)
    one.ready(1)
    one.driver.drain("b")
    one.driver.drain("c")
    assert one.refused == [1]
    assert one.killed == [2]
    one.driver.ended(1, None)
    one.driver.ended(2, "was killed by SIGKILL")
    one.ready(0)
    assert one.world == [0]


def test_a_host_that_the_job_does_not_have_cannot_be_drained() -> None:
    one = running(job(1), a=1)
    with pytest.raises(ValueError, match="the job has no host 'b'; it has a"):
        one.driver.drain("b")
    assert one.told == []


def test_a_member_that_says_nothing_while_the_others_wait_is_killed() -> None:
    one = running(job(3, blacklist_by="slot"), a=3)
    one.driver.ended(0, "was killed")
    assert one.asked == []
    one.ready(1)
    assert one.asked == [2]
    one.wait(30)
    assert one.killed == [2]
    one.driver.ended(2, "was killed")
    assert one.world == [1]


def test_a_member_that_answers_is_waited_for() -> None:
    one = running(job(3, blacklist_by="slot"), a=3)
    one.driver.ended(0, "was killed")
    one.ready(1)
    for _ in range(100):
        one.driver.is_here(2)
        assert one.driver.next_deadline() <= one.now + 1
        one.wait(1)
    assert (one.killed, one.asked) == ([], [2] * 101)
    one.ready(2)
    assert one.world == [1, 2]
    one.wait(40)
    assert (one.killed, one.driver.next_deadline()) == ([], float("inf"))


def test_a_member_that_says_nothing_after_another_has_finished_is_killed() -> None:
    one = running(job(2), a=2)
    one.driver.finished(0)
    assert one.asked == [1]
    one.wait(30)
    assert one.killed == [1]
    one.driver.ended(1, "was killed")
    assert one.ends == []
    one.driver.ended(0, None)
    assert (one.ends, one.driver.late_failures) == ([None], {})


def test_a_worker_that_is_to_leave_and_says_nothing_is_killed() -> None:
    one = running(job(3), a=1, b=2)
    one.hosts(a=1)
    assert one.asked == [1, 2]
    one.ready(0, 1)
    assert (one.refused, one.world) == ([1], [0])
    for _ in range(29):
        one.wait(1)
    assert one.killed == []
    one.wait(1)  # neither has answered: one has been refused, and one is in the earlier world
    assert one.killed == [1, 2]
    one.driver.ended(1, "was killed")
    one.driver.ended(2, "was killed")
    assert one.ends == [] and not one.driver.table.is_blacklisted("b")
    one.hosts(a=1, b=1)
    assert one.places[3:] == [("b", 0)]
