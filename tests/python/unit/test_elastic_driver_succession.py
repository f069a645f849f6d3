"""How the driver of an elastic job keeps the state when its hosts are replaced, all at once."""

from __future__ import annotations

from driver_job import job, running

from perseus.elastic.host_table import Change


def test_hosts_are_replaced_and_those_with_the_state_stay_until_others_have_it() -> None:
    one = running(job(2, most=2), a=2)
    one.driver.began_function(0)
    one.hosts(b=2)
    assert one.places[2:] == [("b", 0), ("b", 1)]
    assert (one.told, one.ends) == ([], [])  # they train on
    assert one.said == [
        "no worker with the job's state has a slot any more; these stay until a new one has the "
        "state: 0, 1"
    ]
    one.ready(2)
    assert one.told == [(0, Change.ADDED), (1, Change.ADDED)]
    one.ready(0, 1, commits=5)
    assert one.world == [0, 1, 2]
    assert one.told[2:] == [(number, Change.REMOVED) for number in (0, 1, 2)]
    one.ready(0, commits=6)
    assert one.refused == []  # worker 2 may have failed to get the state
    one.ready(2, commits=6)
    assert one.refused == [0]
    assert one.world == [2]
    one.ready(1, commits=6)
    assert one.refused == [0, 1]
    one.ready(3)
    one.ready(2, commits=7)
    assert (one.world, one.ends, len(one.said)) == ([2, 3], [], 1)


def test_those_with_the_state_stay_until_as_many_have_it_as_the_job_needs() -> None:
    one = running(job(2, least=2), a=2)
    one.driver.began_function(0)
    one.hosts(b=2)
    one.ready(2)
    one.ready(0, 1, commits=5)
    told = len(one.told)
    one.ready(0, 1, 2, commits=6)
    assert (one.refused, one.world) == ([], [0, 1, 2])
    assert len(one.told) == told  # they train on
    one.ready(3)
    one.ready(0, 1, 2, commits=7)
    assert one.world == [0, 1, 2, 3]
    one.ready(0, 1, 2, 3, commits=8)
    assert (one.refused, one.world) == ([0, 1], [2, 3])


def test_those_with_the_state_stay_if_it_does_not_arrive() -> None:
    one = running(job(2, blacklist_by="slot"), a=2)
    one.driver.began_function(0)
    one.hosts(b=1)
    one.ready(2)
    one.ready(0, 1, commits=5)
    one.driver.ended(1, "was killed")
    one.ready(2)
    one.ready(0, commits=5)
    assert (one.refused, one.world) == ([], [0, 2])
    one.told.clear()
    one.ready(2, commits=6)
    one.ready(0, commits=6)
    assert (one.refused, one.world) == ([0], [2])


def test_one_that_is_leaving_stays_if_all_others_with_the_state_are_lost() -> None:
    one = running(job(2), a=1, b=1)
    one.driver.began_function(0)
    one.hosts(b=1)
    assert one.told == [(0, Change.REMOVED), (1, Change.REMOVED)]
    one.driver.ended(1, "was killed")
    one.ready(0, commits=5)
    assert (one.refused, one.ends, one.world) == ([], [], [0])
    one.hosts(c=1)
    one.ready(2)
    one.ready(0, commits=6)
    one.ready(0, 2, commits=7)
    assert (one.refused, one.world) == ([0], [2])


def test_those_with_the_state_train_on_if_the_new_host_fails() -> None:
    one = running(job(2), a=2)
    one.hosts(b=1)
    one.driver.ended(2, "exited with code 1")
    assert (one.told, one.ends, one.killed) == ([], [], [])
    one.hosts(a=2)
    one.hosts(a=2, c=1)
    assert one.places[3:] == [("c", 0)]
    one.ready(3)
    one.ready(0, 1)
    assert one.world == [0, 1, 3]


def test_those_with_the_state_leave_without_an_heir_when_they_are_drained() -> None:
    one = running(job(1), a=1)
    one.hosts(b=1)
    one.driver.drain("a")
    one.ready(0)
    assert one.refused == [0]
    one.driver.ended(0, None)
    assert "no worker is left" in str(one.ends[0])


def test_a_job_does_not_go_on_without_its_state() -> None:
    one = running(job(1), a=1)
    one.driver.began_function(0)
    one.hosts(a=1, b=1)
    one.ready(1)
    one.ready(0, commits=5)
    assert one.world == [0, 1]
    one.driver.ended(0, "was killed")  # before worker 1 has got the state
    one.ready(1)
    assert len(one.worlds) == 2
    assert one.ends == ["no worker is left that has the state of the job's last world"]


def test_one_that_has_got_the_state_and_not_committed_since_goes_on() -> None:
    one = running(job(1), a=1)
    one.driver.began_function(0)
    one.hosts(a=1, b=1)
    one.ready(1)
    one.ready(0, commits=5)
    one.driver.ended(0, "was killed")
    one.ready(1, commits=5)
    assert one.world == [1]


def test_without_functions_a_new_worker_has_the_state_once_it_is_in_a_world() -> None:
    one = running(job(1), a=1)
    one.hosts(b=1)
    one.ready(1)
    one.ready(0)
    assert one.world == [0, 1]
    assert one.told[1:] == [(0, Change.REMOVED), (1, Change.REMOVED)]
    one.ready(0)
    assert one.refused == [0]
    one.ready(1)
    assert one.world == [1]
