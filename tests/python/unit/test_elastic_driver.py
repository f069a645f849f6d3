"""How the driver of an elastic job forms its worlds, and when the job ends."""

from __future__ import annotations

import pytest
from driver_job import job, running

from perseus.elastic.host_table import Change


def test_a_job_begins_once_it_has_its_slots_and_all_are_ready() -> None:
    one = job(3)
    one.hosts(a=2)
    assert one.started == []
    one.hosts(a=2, b=1)
    assert one.places == [("a", 0), ("a", 1), ("b", 0)]
    one.ready(2, 0)
    assert not one.worlds
    one.ready(1)
    assert one.worlds == {1: [0, 1, 2]}


def test_the_most_are_not_exceeded() -> None:
    one = running(job(2, most=3), a=2)
    one.hosts(a=2, b=5)
    assert one.places == [("a", 0), ("a", 1), ("b", 0)]


def test_members_hear_of_joiners_once_these_are_ready() -> None:
    one = running(job(2), a=2)
    one.hosts(a=2, b=2)
    assert one.places[2:] == [("b", 0), ("b", 1)]
    assert one.told == []
    one.ready(2)
    assert one.told == [(0, Change.ADDED), (1, Change.ADDED)]
    one.ready(1)
    assert len(one.worlds) == 1  # rank 0 still trains
    one.ready(0)
    assert one.world == [0, 1, 2]  # and nobody waits for worker 3, which
    one.ready(3)
    assert one.told[2:] == [(number, Change.ADDED) for number in (0, 1, 2)]
    one.ready(0, 1, 2)
    assert one.world == [0, 1, 2, 3]


def test_in_horovods_way_members_hear_at_once_and_wait_for_joiners() -> None:
    one = running(job(2, join="at_once"), a=2)
    one.hosts(a=2, b=1)
    assert one.told == [(0, Change.ADDED), (1, Change.ADDED)]
    one.ready(0, 1)
    assert len(one.worlds) == 1
    one.ready(2)
    assert one.world == [0, 1, 2]


def test_a_host_that_is_gone_leaves_at_a_border() -> None:
    one = running(job(2), a=2, b=2)
    one.hosts(b=2)
    assert one.told == [(number, Change.REMOVED) for number in range(4)]
    assert not one.killed
    one.ready(0, 3)
    assert one.refused == [0]
    one.ready(2)  # worker 1, which is to leave, need not come
    assert one.world == [2, 3]
    one.ready(1)
    assert one.refused == [0, 1]
    one.driver.ended(0, None)
    one.driver.ended(1, "exited with code 1")
    assert one.ends == []  # both were to end


def test_those_that_stay_need_not_meet_again_when_one_that_leaves_comes_late() -> None:
    one = running(job(2, timeout=60), a=1, b=1)
    one.hosts(a=1)
    one.ready(0)
    assert one.world == [0]
    one.ready(1)
    assert one.refused == [1]
    one.driver.ended(1, None)
    one.wait(61)
    assert one.killed == one.ends == []
    one.hosts(a=1, c=1)
    one.ready(2)
    assert one.told[-1] == (0, Change.ADDED)


@pytest.mark.parametrize(("by", "left"), [("host", [2, 3]), ("slot", [1, 2, 3])])
def test_survivors_go_on_without_a_failed_host_or_slot(by: str, left: list[int]) -> None:
    one = running(job(4, blacklist_by=by), a=2, b=2)
    one.driver.ended(0, "was killed by SIGKILL")
    assert one.killed == ([1] if by == "host" else [])
    one.ready(*left)
    assert one.world == left
    one.hosts(a=2, b=2)
    assert len(one.started) == 4  # what has failed is not used again


def test_a_slot_is_used_again_after_its_cooldown() -> None:
    one = running(job(2, blacklist_by="slot", cooldown_range=(10, 100)), a=2)
    one.driver.ended(1, "exited with code 1")
    one.ready(0)
    assert one.world == [0]
    one.wait(19)
    assert len(one.started) == 2
    one.wait(2)  # twice the lowest
    assert one.places[2:] == [("a", 1)]
    one.ready(2)
    one.ready(0)
    assert one.world == [0, 2]


def test_rank_0_is_a_survivor_even_where_a_new_worker_has_the_first_slot() -> None:
    one = running(job(3, blacklist_by="slot", cooldown_range=(1, 1)), a=2, b=1)
    one.driver.ended(0, "exited with code 1")
    one.ready(1, 2)
    one.wait(2)
    one.ready(3)
    one.ready(1, 2)
    assert one.world == [1, 3, 2]  # those of host a stand together


def test_too_few_wait_for_more_and_then_the_job_ends() -> None:
    one = running(job(2, least=2, timeout=60), a=1, b=1)
    one.driver.ended(1, "exited with code 1")
    one.ready(0)
    assert len(one.worlds) == 1
    one.wait(59)
    assert one.ends == []
    one.hosts(a=1, c=1)
    one.ready(2)
    assert one.world == [0, 2]
    one.driver.ended(2, "exited with code 1")
    one.ready(0)
    one.wait(60)
    assert one.ends == ["1 workers were ready after 60 s, on 1 slots; the job needs 2"]


@pytest.mark.parametrize("join", ["at_once", "background"])
def test_the_time_out_is_for_slots_and_not_for_programs_that_start(join: str) -> None:
    one = running(job(2, least=2, timeout=1, join=join), a=1, b=1)
    one.hosts(a=1, c=1)
    one.driver.ended(1, "exited with code 1")
    one.ready(0)
    one.wait(2)
    assert one.ends == []
    one.ready(2)
    assert one.world == [0, 2]


def test_a_program_that_starts_for_ever_ends_the_job() -> None:
    one = job(2, least=2, timeout=1)
    one.hosts(a=2)
    one.ready(0)
    one.wait(1)
    one.wait(299)
    assert one.ends == []
    one.wait(1)
    assert one.ends == ["1 workers were ready after 301 s, on 2 slots; the job needs 2"]


def test_a_member_that_does_not_come_is_left_behind() -> None:
    one = running(job(3, timeout=60), a=3)
    one.ready(0, 1)
    one.wait(61)
    assert one.killed == [2]
    assert one.world == [0, 1]


def test_nobody_who_has_the_state_is_left() -> None:
    one = running(job(1), a=1)
    one.hosts(a=1, b=1)
    one.driver.ended(0, "exited with code 1")
    one.ready(1)
    assert len(one.ends) == 1 and "has the state" in str(one.ends[0])
    assert len(one.worlds) == 1


def test_all_have_failed() -> None:
    one = job(1)
    one.hosts(a=1)
    one.driver.ended(0, "exited with code 1")
    assert one.ends == ["all workers have failed"]


@pytest.mark.parametrize(("limit", "fails"), [(1, True), (2, False)])
def test_resets_are_limited(limit: int, fails: bool) -> None:
    one = running(job(1, reset_limit=limit), a=1)
    one.hosts(a=1, b=1)
    one.ready(1)
    one.ready(0)
    one.hosts(a=1)
    one.ready(1)
    one.ready(0)
    assert bool(one.ends) == fails
    if fails:
        assert "number of resets during elastic job exceeded limit" in str(one.ends[0])


def test_a_failed_meeting_is_no_reset_and_many_of_them_end_the_job() -> None:
    one = running(job(2, reset_limit=0), a=2)
    for _ in range(2):
        one.ready(0, 1, failure="no route to host")
        assert one.ends == []
    one.ready(0, 1, failure="no route to host")
    assert one.ends == ["the workers cannot meet: no route to host"]


def test_those_that_reach_nobody_are_left_out_in_place_of_that() -> None:
    one = running(job(3, blacklist_by="slot"), a=2, b=1)
    for _ in range(3):
        assert one.killed == []
        one.ready(0, 1, failure="rank 2 never came")
        one.ready(2, failure="no route to host", is_out_of_reach=True)
    assert (one.killed, one.ends) == ([2], [])
    one.hosts(a=2, b=1)
    assert len(one.worlds) == 3  # it is awaited until it has ended
    one.driver.ended(2, "was killed by SIGKILL")
    assert one.world == [0, 1]
    assert "slot 0 of host b is not used for the rest of the job" in one.said[-1]


def test_where_all_reach_nobody_the_job_ends() -> None:
    one = running(job(2), a=2)
    for _ in range(3):
        one.ready(0, 1, failure="no route to host", is_out_of_reach=True)
    assert (one.killed, one.ends) == ([], ["the workers cannot meet: no route to host"])


def test_a_joiner_that_fails_before_it_joins_disturbs_nobody() -> None:
    one = running(job(1), a=1)
    one.hosts(a=1, b=1)
    one.driver.ended(1, "exited with code 1")
    assert one.told == [] and one.ends == []
    one.hosts(a=1, b=1, c=1)
    one.ready(2)
    one.ready(0)
    assert one.world == [0, 2]


def test_rank_0_is_a_survivor_with_the_most_commits() -> None:
    one = running(job(4, blacklist_by="slot"), a=2, b=2)
    one.driver.ended(0, "was killed")
    one.ready(1, commits=6)
    one.ready(2, commits=6)
    one.ready(3, commits=7)
    assert one.world == [3, 2, 1]  # those of a host stand together


def test_a_job_ends_if_those_with_the_state_end_before_a_new_worker_has_it() -> None:
    one = running(job(2), a=1, b=1)
    one.hosts(a=1, b=1, c=1)
    one.ready(2)
    one.ready(0, 1, commits=5, call=1)
    assert one.world == [0, 1, 2]
    one.driver.ended(0, "was killed")
    one.ready(2, commits=0, call=1)
    assert one.ends == []  # worker 1 has it
    one.driver.ended(1, "was killed")
    assert len(one.ends) == 1 and "no worker is left that has the state" in str(one.ends[0])
    assert max(one.worlds) == 2


@pytest.mark.parametrize(("before", "call"), [(0, 1), (5, 2)])
def test_a_job_goes_on_before_a_call_has_a_commit(before: int, call: int) -> None:
    one = running(job(2), a=1, b=1)
    one.ready(0, 1, commits=before, call=1)
    one.driver.ended(0, "was killed")
    one.ready(1, commits=0, call=call)  # in another call with a new state, if it is the second one
    assert one.world == [1]
    assert one.ends == []


def test_commits_do_not_make_a_new_worker_rank_0() -> None:
    one = running(job(1), a=1)
    one.hosts(a=1, b=1)
    one.ready(1, commits=9)  # of another job, such as from a checkpoint
    one.ready(0, commits=2)
    assert one.world == [0, 1]


def test_a_worker_that_leaves_late_does_not_end_the_new_world() -> None:
    one = running(job(2, timeout=60), a=2, b=2)
    one.hosts(b=2)
    one.ready(0, 2, 3)
    assert one.world == [2, 3]
    one.ready(1)
    assert one.refused == [0, 1]
    told = len(one.told)
    one.hosts(b=2, c=1)
    one.ready(4)
    assert one.told[told:] == [(2, Change.ADDED), (3, Change.ADDED)]
    one.wait_while_all_answer(61)
    assert one.killed == one.ends == []


def test_a_slot_lost_while_workers_meet_does_not_disturb_the_new_world() -> None:
    one = running(job(3), a=1, b=1, c=1)
    one.hosts(a=1, b=1)
    one.ready(0)
    one.hosts(a=1)  # worker 1 has not come yet
    assert one.world == [0]
    told = len(one.told)
    one.hosts(a=1)
    one.ready(1, 2)
    assert one.told[told:] == []
    assert one.refused == [1, 2]


def test_after_the_time_out_no_world_forms_without_the_state() -> None:
    one = running(job(2, timeout=60), a=1, b=1)
    one.hosts(a=1, b=1, c=1)
    one.ready(2, 0)
    one.driver.ended(0, "exited with code 1")
    one.wait(61)  # worker 1 has the state, and has not come
    assert one.killed == [1]
    assert len(one.ends) == 1 and "has the state" in str(one.ends[0])
    assert len(one.worlds) == 1


def test_a_slot_that_is_back_takes_the_place_of_none_in_use() -> None:
    one = running(job(2, most=2, blacklist_by="slot", cooldown_range=(10, 100)), a=1, b=1)
    one.hosts(a=1, b=1, c=1)
    one.driver.ended(0, "was killed")
    assert one.places[2:] == [("c", 0)]
    one.ready(1)
    one.ready(2)
    one.ready(1)
    assert one.world == [1, 2]
    told = len(one.told)
    one.wait(30)
    assert one.driver.table.count_usable_slots() == 3
    assert len(one.started) == 3
    assert one.told[told:] == one.killed == []
    one.hosts(a=1, b=1)
    assert one.places[3:] == [("a", 0)]
