"""How the driver of an elastic job ends it: whose end is one of the job, and what is a failure."""

from __future__ import annotations

import pytest
from driver_job import job, running

from perseus.elastic.host_table import Change


def test_success_when_the_functions_have_returned() -> None:
    one = running(job(2), a=2)
    for number in (0, 1):
        one.driver.began_function(number)
    one.driver.finished(0)
    assert one.ends == []
    one.driver.ended(0, None)
    one.driver.finished(1)
    assert one.ends == []
    one.driver.ended(1, None)
    assert one.ends == [None]


def test_nobody_takes_the_place_of_a_worker_that_has_done_its_work() -> None:
    one = running(job(2), a=2)
    one.driver.began_function(0)
    one.driver.finished(0)
    one.driver.ended(0, None)
    assert (len(one.started), one.told) == (2, [])
    one.driver.ended(1, None)
    assert one.ends == [None]


def test_exit_code_0_before_the_function_has_returned_is_a_failure() -> None:
    one = running(job(2, blacklist_by="slot"), a=2)
    one.driver.began_function(0)
    one.driver.began_function(1)
    one.driver.ended(0, None)
    one.ready(1)
    assert one.ends == []
    assert one.world == [1]


def test_exit_code_0_before_the_function_has_begun_is_a_failure() -> None:
    one = running(job(1, blacklist_by="slot"), a=1)
    one.driver.began_function(0)
    one.hosts(a=1, b=1, c=1)
    one.driver.ended(1, None)  # nobody has done its work
    assert one.killed == one.refused == one.ends == []
    assert "slot 0 of host b" in one.said[-1]
    assert one.said[-1].endswith("exited with code 0 before its training function had begun")
    one.ready(2)
    one.ready(0)
    assert one.world == [0, 2]
    for number in (0, 2):
        one.driver.finished(number)
        one.driver.ended(number, None)
    assert one.ends == [None]


def test_a_program_without_a_function_has_succeeded_with_exit_code_0() -> None:
    one = running(job(2), a=2)
    one.driver.ended(0, None)
    one.driver.ended(1, None)
    assert one.ends == [None]


def test_joiners_are_ended_once_a_worker_has_finished() -> None:
    one = running(job(1), a=1)
    one.hosts(a=1, b=2)
    one.ready(1)
    one.driver.began_function(0)
    one.driver.finished(0)
    assert one.refused == one.killed == []  # there may be another call for them
    one.driver.ended(0, None)
    assert one.refused == [1]
    assert one.killed == [2]
    assert one.ends == [None]


def test_a_failure_after_the_function_has_returned_is_one_of_the_job() -> None:
    one = running(job(2), a=2)
    for number in (0, 1):
        one.driver.began_function(number)
        one.driver.finished(number)
    one.driver.ended(1, "exited with code 3", 3)
    assert (one.ends, one.said) == ([], [])
    one.driver.ended(0, None)
    assert (one.ends, one.driver.late_failures) == ([None], {1: ("exited with code 3", 3)})


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_failure_in_a_function_from_which_another_has_returned_is_one_of_the_job(
    has_ended: bool,
) -> None:
    one = running(job(2), a=1, b=1)
    for number in (0, 1):
        one.driver.began_function(number)
    one.driver.finished(0)
    if has_ended:
        one.driver.ended(0, None)
    one.driver.ended(1, "exited with code 3", 3)
    if not has_ended:
        one.driver.ended(0, None)
    assert (one.ends, one.driver.late_failures) == ([None], {1: ("exited with code 3", 3)})


def test_without_functions_too_a_failure_after_another_has_ended_is_one_of_the_job() -> None:
    one = running(job(2), a=1, b=1)
    one.driver.ended(0, None)
    one.driver.ended(1, "exited with code 3", 3)
    assert (one.ends, one.driver.late_failures) == ([None], {1: ("exited with code 3", 3)})


def test_the_failure_of_one_that_is_to_leave_is_none_of_the_job() -> None:
    one = running(job(2), a=1, b=1)
    for number in (0, 1):
        one.driver.began_function(number)
    one.driver.drain("b")
    one.driver.finished(0)
    one.driver.ended(1, "exited with code 3", 3)
    one.driver.ended(0, None)
    assert (one.ends, one.driver.late_failures) == ([None], {})


def test_a_failure_between_two_calls_is_that_of_a_rank() -> None:
    one = running(job(3, blacklist_by="slot"), a=3)
    for number in (0, 1, 2):
        one.driver.began_function(number)
        one.driver.finished(number)
    one.driver.ended(1, "exited with code 3", 3)
    one.driver.began_function(0, 2)
    assert one.driver.late_failures == {}
    assert one.said == [
        "slot 1 of host a is not used for the rest of the job, since worker 1 has failed"
    ]
    one.ready(0, call=2)
    assert len(one.worlds) == 1  # worker 2 is awaited, which is about to begin that call, too
    one.driver.began_function(2, 2)
    one.ready(2, call=2)
    assert (one.world, one.calls[-1]) == ([0, 2], 2)


def test_a_joiner_waits_for_another_call() -> None:
    one = running(job(1), a=1)
    one.driver.began_function(0)
    one.hosts(a=1, b=1)
    one.driver.finished(0)
    one.ready(1, call=1)
    assert (one.refused, one.told) == ([], [])
    one.driver.began_function(0, 2)
    assert one.told == [(0, Change.ADDED)]
    one.ready(0, call=2)
    assert (one.world, one.calls[-1]) == ([0, 1], 2)


def test_rank_0_is_in_the_latest_call_and_the_others_are_told_which() -> None:
    one = running(job(3, blacklist_by="slot"), a=3)
    for number in (0, 1, 2):
        one.driver.began_function(number)
    one.driver.finished(2)
    one.driver.ended(0, "was killed")
    one.ready(1, commits=9, call=1)  # it has failed where worker 2 has not
    assert one.refused == []
    one.driver.began_function(2, 2)
    one.ready(2, commits=1, call=2)
    assert (one.world, one.calls[-1]) == ([2, 1], 2)
    assert one.driver.workers.earliest_call() == 1


def test_no_time_out_ends_a_job_that_is_about_to_finish() -> None:
    one = running(job(3, timeout=60), a=3)
    one.ready(0)
    one.driver.finished(1)
    assert one.refused == []
    one.wait(61)
    assert one.ends == []
    one.driver.finished(2)
    one.driver.ended(1, None)
    assert one.refused == [0]
    one.driver.ended(2, None)
    assert one.ends == [None]


def test_a_program_without_worlds_runs_to_its_end_on_every_slot() -> None:
    one = job(3)
    one.hosts(a=3)
    one.driver.ended(0, None)
    one.driver.ended(1, None)
    assert one.killed == one.ends == []
    one.driver.ended(2, None)
    assert one.ends == [None]
