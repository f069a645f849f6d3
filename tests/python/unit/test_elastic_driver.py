"""The driver of elastic jobs, with an owner that notes what it is asked for, and its own clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perseus.elastic.agent_report import WorkerReport
from perseus.elastic.driver import Driver, NextWorld
from perseus.elastic.host_table import Change, HostTable
from perseus.elastic.options import ElasticOptions
from perseus.elastic.workers import State, Worker
from perseus.run.hosts import Host


class Job:
    """Owns a driver, and plays its workers."""

    def __init__(self, size: int, options: ElasticOptions) -> None:
        self.now = 1000.0
        self.started: list[Worker] = []
        self.killed: list[int] = []
        self.refused: list[int] = []
        self.worlds: dict[int, list[int]] = {}  # by meeting
        self.told: list[tuple[int, Change]] = []
        self.ends: list[str | None] = []
        self.asked: list[int] = []
        self.said: list[str] = []
        table = HostTable(options.cooldown_range, clock=lambda: self.now, uniform=lambda: 0.0)
        self.driver = Driver(options, size, self, table, lambda: self.now, patience=30)

    def start(self, starting: Sequence[Worker]) -> None:
        self.started += starting

    def kill(self, worker: Worker, why: str) -> None:
        self.killed.append(worker.number)

    def enter(self, worker: Worker, world: NextWorld) -> None:
        self.worlds.setdefault(world.meeting, list(world.workers))
        assert self.worlds[world.meeting] == world.workers
        assert worker.number in world.workers
        assert world.started == len(self.driver.workers)

    def refuse(self, worker: Worker, why: str) -> None:
        self.refused.append(worker.number)

    def notify(self, worker: Worker, number: int, change: Change) -> None:
        self.told.append((worker.number, change))

    def ask(self, worker: Worker) -> None:
        self.asked.append(worker.number)

    def say(self, message: str) -> None:
        self.said.append(message)

    def end(self, failure: str | None) -> None:
        self.ends.append(failure)

    # ---- What the tests do.

    def hosts(self, **slots: int) -> None:
        self.driver.hosts_found([Host(name, count) for name, count in slots.items()])

    def ready(self, *numbers: int, failure: str = "", commits: int = 0) -> None:
        for number in numbers:
            self.driver.ready(number, failure, commits)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.driver.handle_deadlines()

    def wait_while_all_answer(self, seconds: int) -> None:
        for _ in range(seconds):
            for worker in self.started:
                self.driver.is_here(worker.number)
            self.wait(1)

    @property
    def places(self) -> list[tuple[str, int]]:
        return [worker.place for worker in self.started]

    @property
    def world(self) -> list[int]:
        """The workers of the last world, by rank."""
        return self.worlds[max(self.worlds)]


MakeJob = Callable[..., Job]


@pytest.fixture
def job() -> MakeJob:
    def make(size: int, least: int = 1, **options: Any) -> Job:
        return Job(size, ElasticOptions(least=least, **options))

    return make


def running(job: Job, **slots: int) -> Job:
    """A job whose workers on all of these slots train."""
    job.hosts(**slots)
    job.ready(*(worker.number for worker in job.started))
    assert len(job.world) == sum(slots.values())
    return job


def test_a_job_begins_once_it_has_its_slots_and_all_are_ready(job: MakeJob) -> None:
    one = job(3)
    one.hosts(a=2)
    assert one.started == []
    one.hosts(a=2, b=1)
    assert one.places == [("a", 0), ("a", 1), ("b", 0)]
    one.ready(2, 0)
    assert not one.worlds
    one.ready(1)
    assert one.worlds == {1: [0, 1, 2]}


def test_the_most_are_not_exceeded(job: MakeJob) -> None:
    one = running(job(2, most=3), a=2)
    one.hosts(a=2, b=5)
    assert one.places == [("a", 0), ("a", 1), ("b", 0)]


def test_members_hear_of_joiners_once_these_are_ready(job: MakeJob) -> None:
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


def test_in_horovods_way_members_hear_at_once_and_wait_for_joiners(job: MakeJob) -> None:
    one = running(job(2, join="at_once"), a=2)
    one.hosts(a=2, b=1)
    assert one.told == [(0, Change.ADDED), (1, Change.ADDED)]
    one.ready(0, 1)
    assert len(one.worlds) == 1
    one.ready(2)
    assert one.world == [0, 1, 2]


def test_a_host_that_is_gone_leaves_at_a_border(job: MakeJob) -> None:
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


def test_those_that_stay_need_not_meet_again_when_one_that_leaves_comes_late(
    job: MakeJob,
) -> None:
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
def test_survivors_go_on_without_a_failed_host_or_slot(
    job: MakeJob, by: str, left: list[int]
) -> None:
    one = running(job(4, blacklist_by=by), a=2, b=2)
    one.driver.ended(0, "was killed by SIGKILL")
    assert one.killed == ([1] if by == "host" else [])
    one.ready(*left)
    assert one.world == left
    one.hosts(a=2, b=2)
    assert len(one.started) == 4  # what has failed is not used again


def test_a_slot_is_used_again_after_its_cooldown(job: MakeJob) -> None:
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


def test_rank_0_is_a_survivor_even_where_a_new_worker_has_the_first_slot(job: MakeJob) -> None:
    one = running(job(3, blacklist_by="slot", cooldown_range=(1, 1)), a=2, b=1)
    one.driver.ended(0, "exited with code 1")
    one.ready(1, 2)
    one.wait(2)
    one.ready(3)
    one.ready(1, 2)
    assert one.world == [1, 3, 2]  # those of host a stand together


def test_too_few_wait_for_more_and_then_the_job_ends(job: MakeJob) -> None:
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
def test_the_time_out_is_for_slots_and_not_for_programs_that_start(job: MakeJob, join: str) -> None:
    one = running(job(2, least=2, timeout=1, join=join), a=1, b=1)
    one.hosts(a=1, c=1)
    one.driver.ended(1, "exited with code 1")
    one.ready(0)
    one.wait(2)
    assert one.ends == []
    one.ready(2)
    assert one.world == [0, 2]


def test_a_program_that_starts_for_ever_ends_the_job(job: MakeJob) -> None:
    one = job(2, least=2, timeout=1)
    one.hosts(a=2)
    one.ready(0)
    one.wait(1)
    one.wait(299)
    assert one.ends == []
    one.wait(1)
    assert one.ends == ["1 workers were ready after 301 s, on 2 slots; the job needs 2"]


def test_a_member_that_does_not_come_is_left_behind(job: MakeJob) -> None:
    one = running(job(3, timeout=60), a=3)
    one.ready(0, 1)
    one.wait(61)
    assert one.killed == [2]
    assert one.world == [0, 1]


def test_nobody_who_has_the_state_is_left(job: MakeJob) -> None:
    one = running(job(1), a=1)
    one.hosts(a=1, b=1)
    one.driver.ended(0, "exited with code 1")
    one.ready(1)
    assert len(one.ends) == 1 and "has its state" in str(one.ends[0])
    assert len(one.worlds) == 1


def test_all_have_failed(job: MakeJob) -> None:
    one = job(1)
    one.hosts(a=1)
    one.driver.ended(0, "exited with code 1")
    assert one.ends == ["all workers have failed"]


@pytest.mark.parametrize(("limit", "fails"), [(1, True), (2, False)])
def test_resets_are_limited(job: MakeJob, limit: int, fails: bool) -> None:
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


def test_a_failed_meeting_is_no_reset_and_many_of_them_end_the_job(job: MakeJob) -> None:
    one = running(job(2, reset_limit=0), a=2)
    for _ in range(2):
        one.ready(0, 1, failure="no route to host")
        assert one.ends == []
    one.ready(0, 1, failure="no route to host")
    assert one.ends == ["the workers cannot meet: no route to host"]


def test_success_when_the_functions_have_returned(job: MakeJob) -> None:
    one = running(job(2), a=2)
    for number in (0, 1):
        one.driver.began_function(number)
    one.driver.finished(0)
    assert one.ends == []
    one.driver.ended(0, None)
    one.driver.finished(1)
    assert one.ends == [None]


def test_nobody_takes_the_place_of_a_worker_that_has_done_its_work(job: MakeJob) -> None:
    one = running(job(2), a=2)
    one.driver.began_function(0)
    one.driver.finished(0)
    one.driver.ended(0, None)
    assert (len(one.started), one.told) == (2, [])
    one.driver.ended(1, None)
    assert one.ends == [None]


def test_exit_code_0_before_the_function_has_returned_is_a_failure(job: MakeJob) -> None:
    one = running(job(2, blacklist_by="slot"), a=2)
    one.driver.began_function(0)
    one.driver.began_function(1)
    one.driver.ended(0, None)
    one.ready(1)
    assert one.ends == []
    assert one.world == [1]


def test_exit_code_0_before_the_function_has_begun_is_a_failure(job: MakeJob) -> None:
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


def test_a_program_without_a_function_has_succeeded_with_exit_code_0(job: MakeJob) -> None:
    one = running(job(2), a=2)
    one.driver.ended(0, None)
    one.driver.ended(1, None)
    assert one.ends == [None]


def test_joiners_are_ended_once_a_worker_has_finished(job: MakeJob) -> None:
    one = running(job(1), a=1)
    one.hosts(a=1, b=2)
    one.ready(1)
    one.driver.began_function(0)
    one.driver.finished(0)
    assert one.refused == [1]
    assert one.killed == [2]
    assert one.ends == [None]


def test_a_joiner_that_fails_before_it_joins_disturbs_nobody(job: MakeJob) -> None:
    one = running(job(1), a=1)
    one.hosts(a=1, b=1)
    one.driver.ended(1, "exited with code 1")
    assert one.told == [] and one.ends == []
    one.hosts(a=1, b=1, c=1)
    one.ready(2)
    one.ready(0)
    assert one.world == [0, 2]


def test_rank_0_is_a_survivor_with_the_most_commits(job: MakeJob) -> None:
    one = running(job(4, blacklist_by="slot"), a=2, b=2)
    one.driver.ended(0, "was killed")
    one.ready(1, commits=6)
    one.ready(2, commits=6)
    one.ready(3, commits=7)
    assert one.world == [3, 2, 1]  # those of a host stand together


def test_commits_do_not_make_a_new_worker_rank_0(job: MakeJob) -> None:
    one = running(job(1), a=1)
    one.hosts(a=1, b=1)
    one.ready(1, commits=9)  # of another job, such as from a checkpoint
    one.ready(0, commits=2)
    assert one.world == [0, 1]


def test_a_drained_host_leaves_at_a_border_and_is_not_used_while_it_is_found(job: MakeJob) -> None:
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


def test_a_worker_that_asks_leaves_and_another_slot_is_used_in_its_place(job: MakeJob) -> None:
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


def test_a_drained_worker_that_does_not_come_is_killed_and_no_host_is_left_out(
    job: MakeJob,
) -> None:
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


def test_draining_below_the_least_waits_for_more_slots(job: MakeJob) -> None:
    one = running(job(2, least=2), a=1, b=1)
    one.driver.drain("b")
    one.ready(0, 1)
    one.driver.ended(1, None)
    assert len(one.worlds) == 1
    one.hosts(a=1, b=1, c=1)
    one.ready(2)
    assert one.world == [0, 2]


def test_a_job_whose_last_host_is_drained_ends_when_all_have_left(job: MakeJob) -> None:
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


def test_a_job_that_is_drained_starts_none_any_more_and_ends(job: MakeJob) -> None:
    one = running(job(1), a=1)
    one.driver.drain_all()
    one.hosts(a=1, b=1)
    one.driver.drain_all()
    one.ready(0)
    one.driver.ended(0, None)
    assert len(one.started) == len(one.ends) == 1


def test_a_job_that_is_drained_before_it_has_workers_ends(job: MakeJob) -> None:
    one = job(2)
    one.hosts(a=1)
    one.driver.drain_all()
    assert one.ends == ["it is drained before it has any workers"]


def test_workers_that_are_not_in_a_world_yet_are_drained_at_once(job: MakeJob) -> None:
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


def test_a_host_that_the_job_does_not_have_cannot_be_drained(job: MakeJob) -> None:
    one = running(job(1), a=1)
    with pytest.raises(ValueError, match="the job has no host 'b'; it has a"):
        one.driver.drain("b")
    assert one.told == []


def test_a_member_that_says_nothing_while_the_others_wait_is_killed(job: MakeJob) -> None:
    one = running(job(3, blacklist_by="slot"), a=3)
    one.driver.ended(0, "was killed")
    assert one.asked == []
    one.ready(1)
    assert one.asked == [2]
    one.wait(30)
    assert one.killed == [2]
    one.driver.ended(2, "was killed")
    assert one.world == [1]


def test_a_member_that_answers_is_waited_for(job: MakeJob) -> None:
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


def test_a_member_that_says_nothing_after_another_has_finished_is_killed(job: MakeJob) -> None:
    one = running(job(2), a=2)
    one.driver.finished(0)
    assert one.asked == [1]
    one.wait(30)
    assert one.killed == [1]
    one.driver.ended(1, "was killed")
    assert one.ends == [None]


def test_a_worker_that_is_to_leave_and_says_nothing_is_killed(job: MakeJob) -> None:
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


def test_a_worker_that_leaves_late_does_not_end_the_new_world(job: MakeJob) -> None:
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


def test_a_slot_lost_while_workers_meet_does_not_disturb_the_new_world(job: MakeJob) -> None:
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


def test_after_the_time_out_no_world_forms_without_the_state(job: MakeJob) -> None:
    one = running(job(2, timeout=60), a=1, b=1)
    one.hosts(a=1, b=1, c=1)
    one.ready(2, 0)
    one.driver.ended(0, "exited with code 1")
    one.wait(61)  # worker 1 has the state, and has not come
    assert one.killed == [1]
    assert len(one.ends) == 1 and "has its state" in str(one.ends[0])
    assert len(one.worlds) == 1


def test_no_time_out_ends_a_job_that_is_about_to_finish(job: MakeJob) -> None:
    one = running(job(3, timeout=60), a=3)
    one.ready(0)
    one.driver.finished(1)
    assert one.refused == [0]
    one.wait(61)
    assert one.ends == []
    one.driver.finished(2)
    assert one.ends == [None]


def test_a_slot_that_is_back_takes_the_place_of_none_in_use(job: MakeJob) -> None:
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


def test_a_program_without_worlds_runs_to_its_end_on_every_slot(job: MakeJob) -> None:
    one = job(3)
    one.hosts(a=3)
    one.driver.ended(0, None)
    one.driver.ended(1, None)
    assert one.killed == one.ends == []
    one.driver.ended(2, None)
    assert one.ends == [None]


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
    assert other.driver.change == one.driver.change
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
    last.ready(0, 1)
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
    assert other.ends == [None]
