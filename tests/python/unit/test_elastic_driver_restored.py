"""Another driver of an elastic job goes on where one has ended."""

from __future__ import annotations

import json

from driver_job import Job, running

from perseus.elastic.agent_report import WorkerReport
from perseus.elastic.options import ElasticOptions
from perseus.elastic.workers import State, Worker


def handed_over(job: Job, options: ElasticOptions, size: int) -> Job:
    """Another owner and driver, which know what is written down and what agents report."""
    other = Job(size, options)
    other.now = job.now
    saved = json.loads(json.dumps(job.driver.saved()))
    other.driver.restore(saved, {w.number: report_of(w) for w in job.driver.workers if w.is_alive})
    other.worlds = {job.driver.meeting: [w.number for w in job.driver.workers if w.is_alive]}
    return other


def report_of(worker: Worker) -> WorkerReport:
    return WorkerReport(
        number=worker.number,
        status=None,
        is_waiting=worker.state is State.WAITING,
        commits=worker.commits,
        meeting=worker.meeting,
        rank=worker.rank,
        change=0,
        is_in_function=worker.is_in_function,
        has_finished=worker.state is State.FINISHED,
        call=worker.call,
        returned=worker.returned,
        asks_to_leave=False,
    )


def test_another_driver_goes_on_where_one_has_ended() -> None:
    options = ElasticOptions(least=1, cooldown_range=(10, 100), blacklist_by="slot")
    one = running(Job(3, options), a=2, b=1)
    one.driver.ended(1, "exited with code 1")
    other = handed_over(one, options, 3)
    other.hosts(a=2, b=1)
    assert other.started == []  # its slot is kept out for 20 s, as before
    other.ready(0, 2)
    assert other.worlds[2] == [0, 2]
    assert other.driver.workers[2].meeting == 2
    other.wait(20)
    assert [worker.number for worker in other.started] == [3]  # no number comes twice
    assert other.places == [("a", 1)]


def test_another_driver_knows_who_leaves_and_when() -> None:
    options = ElasticOptions(least=1, timeout=60)
    one = running(Job(3, options), a=2, b=1)
    one.driver.drain("b")
    one.wait(40)
    other = handed_over(one, options, 3)
    other.hosts(a=2, b=1)
    assert other.driver.saved()["change"] == one.driver.saved()["change"] == 1
    assert other.driver.next_deadline() == other.now + 20
    other.wait(20)
    assert other.killed == [2]
    other.driver.ended(2, "was killed")
    other.ready(0, 1)
    assert other.worlds[2] == [0, 1]
    assert other.started == []  # a drained host is not used again


def test_another_driver_forms_the_world_that_all_wait_for() -> None:
    options = ElasticOptions(least=1, reset_limit=1)
    one = running(Job(2, options), a=2)
    one.ready(0, commits=3)
    other = handed_over(one, options, 2)
    other.hosts(a=2)
    assert list(other.worlds) == [1]  # worker 1 has not come yet
    other.ready(1, commits=4)
    assert other.worlds[2] == [1, 0]  # the one with more commits gives its state
    last = handed_over(other, options, 2)
    last.hosts(a=2)
    last.ready(0, 1, commits=4)
    assert last.ends == ["the number of resets during elastic job exceeded limit of 1"]


def test_another_driver_forms_the_first_world() -> None:
    options = ElasticOptions(least=1)
    one = Job(2, options)
    one.hosts(a=2)
    one.ready(1)
    other = handed_over(one, options, 2)
    other.worlds.clear()
    other.hosts(a=2)
    assert (other.started, other.worlds) == ([], {})
    other.ready(0)
    assert other.worlds == {1: [0, 1]}


def test_another_driver_believes_workers_that_have_entered_a_later_world() -> None:
    options = ElasticOptions(least=1)
    one = running(Job(2, options), a=2)
    saved = json.loads(json.dumps(one.driver.saved()))
    one.ready(0, 1)
    assert one.driver.meeting == 2  # which was not written down
    other = Job(2, options)
    other.driver.restore(saved, {w.number: report_of(w) for w in one.driver.workers})
    other.hosts(a=2)
    assert other.driver.meeting == 2
    other.ready(0, 1)
    assert list(other.worlds) == [3]


def test_another_driver_starts_nobody_once_a_worker_has_finished() -> None:
    options = ElasticOptions(least=1)
    one = running(Job(2, options), a=2)
    one.driver.finished(0)
    other = handed_over(one, options, 2)
    other.hosts(a=2, b=2)
    assert (other.started, other.ends) == ([], [])
    other.driver.finished(1)
    other.driver.ended(1, None)
    other.driver.ended(0, "exited with code 3", 3)
    last = handed_over(other, options, 2)
    assert last.driver.late_failures == {0: ("exited with code 3", 3)}
    assert other.ends == [None]


def test_another_driver_keeps_those_that_wait_until_others_have_the_state() -> None:
    options = ElasticOptions(least=1)
    one = running(Job(1, options), a=1)
    one.driver.began_function(0)
    one.hosts(b=1)
    other = handed_over(one, options, 1)
    other.hosts(b=1)
    assert (other.refused, other.killed, other.ends) == ([], [], [])
    other.ready(1)
    other.ready(0, commits=5)
    assert other.worlds[2] == [0, 1]
    other.ready(0, 1, commits=6)
    assert (other.refused, other.worlds[3]) == ([0], [1])


def test_another_driver_knows_that_a_new_worker_lacks_the_state() -> None:
    options = ElasticOptions(least=1)
    one = running(Job(2, options), a=1, b=1)
    one.ready(0, commits=5, call=1)
    one.driver.ended(1, "was killed")
    one.hosts(a=1, c=1)
    one.ready(2)
    one.ready(0, commits=6, call=1)
    assert one.world == [0, 2]
    one.driver.workers[0].state = State.GONE  # while there is no launcher
    other = handed_over(one, options, 2)
    other.hosts(a=1, c=1)
    other.ready(2, call=1)
    assert len(other.ends) == 1 and "no worker is left that has the state" in str(other.ends[0])
