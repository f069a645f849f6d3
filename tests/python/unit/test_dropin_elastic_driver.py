"""Tests the drop-in's ElasticDriver, whose workers are functions in threads here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perseus.common.elastic import HostUpdateResult
from perseus.dropin.runner.common.util.hosts import SlotInfo
from perseus.dropin.runner.common.util.timeout import TimeoutException
from perseus.dropin.runner.elastic import driver as module
from perseus.dropin.runner.elastic.discovery import FixedHosts
from perseus.dropin.runner.elastic.driver import ElasticDriver
from perseus.dropin.runner.elastic.registration import FAILURE, READY, SUCCESS
from perseus.elastic.driver import Driver

Events = list[threading.Event]
SECONDS = 20.0


class Rendezvous:
    """Notes the worlds of which it is told."""

    def __init__(self) -> None:
        self.worlds: list[list[tuple[str, int]]] = []
        self.stops = 0

    def init(self, slots: list[SlotInfo]) -> None:
        self.worlds.append([(slot.hostname, slot.local_rank) for slot in slots])

    def stop(self) -> None:
        self.stops += 1


class Client:
    """Stands for the notification service of a worker."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def notify_hosts_updated(self, timestamp: int, update_res: int) -> None:
        assert abs(timestamp - time.time()) < SECONDS
        self.told.append(update_res)


class Job:
    def __init__(self, hosts: dict[str, int], **options: Any) -> None:
        self.discovery = FixedHosts(hosts)
        self.rendezvous = Rendezvous()
        self.driver = ElasticDriver(self.rendezvous, self.discovery, **options)
        self.places: dict[tuple[str, int], SlotInfo] = {}  # by worker, in its last world

    def meet(self, slot: SlotInfo) -> SlotInfo:
        self.driver.record_ready(slot.hostname, slot.local_rank)
        found = self.driver.get_slot_info(slot.hostname, slot.local_rank)
        self.places[slot.hostname, slot.local_rank] = found
        return found

    def run(
        self, size: int, work: Callable[[SlotInfo, Events], int]
    ) -> dict[str, tuple[int, float]]:
        """Returns the outcomes of a job whose workers return exit codes."""
        self.driver.start(size, lambda slot, events: (work(slot, events), time.time()))
        return self.driver.get_results().worker_results


MakeJob = Callable[..., Job]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.01)


@pytest.fixture
def job() -> Iterator[MakeJob]:
    jobs: list[Job] = []

    def make(hosts: dict[str, int], **options: Any) -> Job:
        jobs.append(Job(hosts, **{"min_num_proc": 1, "max_num_proc": 4, **options}))
        return jobs[-1]

    yield make
    for one in jobs:
        one.driver.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def codes(results: dict[str, tuple[int, float]]) -> dict[str, int]:
    return {name: code for name, (code, _) in results.items()}


def test_workers_meet_and_get_the_places_that_were_planned(job: MakeJob) -> None:
    one = job({"a": 2, "b": 1})

    def work(slot: SlotInfo, events: Events) -> int:
        assert one.meet(slot) == slot
        return 0

    assert codes(one.run(3, work)) == {"a[0]": 0, "a[1]": 0, "b[0]": 0}
    assert one.places["b", 0] == SlotInfo("b", 2, 0, 1, 3, 1, 2)
    assert one.rendezvous.worlds == [[("a", 0), ("a", 1), ("b", 0)]] * 2  # planned, and met
    assert (one.driver.world_size(), one.driver.local_size("a")) == (3, 2)
    assert one.driver.get_coordinator_info() == one.places["a", 0]
    assert one.driver.finished()


def test_a_host_of_which_one_worker_fails_is_left_out_and_its_other_worker_told(
    job: MakeJob,
) -> None:
    one = job({"a": 2, "b": 2})
    told = threading.Event()

    def work(slot: SlotInfo, events: Events) -> int:
        if slot.hostname == "a":
            if slot.local_rank == 0:
                return 1
            wait_for(lambda: any(event.is_set() for event in events))
            told.set()
            return 1
        assert told.wait(SECONDS)
        one.meet(slot)
        return 0

    assert codes(one.run(4, work)) == {"b[0]": 0, "b[1]": 0}
    assert [place.rank for place in one.places.values()] in ([0, 1], [1, 0])
    assert one.driver.get_slot_info("a", 0).rank == -1
    assert not one.driver.has_rank_assignment("a", 1)


def test_an_error_of_the_function_is_a_failure(job: MakeJob) -> None:
    one = job({"a": 1})

    def work(slot: SlotInfo, events: Events) -> int:
        raise ValueError("no such program")

    assert codes(one.run(1, work)) == {"a[0]": 1}
    assert one.driver.get_results().error_message == "all workers have failed"


def test_rank_0_alone_hears_of_hosts_that_come_and_go(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job({"a": 2})
    clients = {place: Client() for place in (("a", 0), ("a", 1), ("b", 0))}
    monkeypatch.setattr(
        one.driver,
        "get_worker_client",
        lambda slot: clients[slot.hostname, slot.local_rank],
    )
    here = threading.Barrier(2)

    def work(slot: SlotInfo, events: Events) -> int:
        one.meet(slot)
        if slot.hostname == "a":
            if here.wait(SECONDS) == 0:
                one.discovery.set({"a": 2, "b": 1})
            one.driver.wait_for_available_slots(3)
            assert one.meet(slot).size == 3
            if here.wait(SECONDS) == 0:
                one.discovery.set({"a": 1, "b": 1})
        wait_for(lambda: len(clients["a", 0].told) == 2)
        one.meet(slot)  # the worker on a[1] has no place any more
        return 0

    assert codes(one.run(2, work)) == {"a[0]": 0, "b[0]": 0}
    added, removed = HostUpdateResult.added, HostUpdateResult.removed
    assert [client.told for client in clients.values()] == [[added, removed], [], []]
    assert one.places["a", 1].rank == -1
    assert one.places["b", 0].rank == 1


def test_more_resets_than_the_limit_end_the_job(job: MakeJob) -> None:
    one = job({"a": 2}, reset_limit=1)
    worlds = iter(range(100))

    def work(slot: SlotInfo, events: Events) -> int:
        while not one.driver.finished():
            one.meet(slot)
            next(worlds)
        return 1

    one.run(2, work)
    message = one.driver.get_results().error_message
    assert message == "the number of resets during elastic job exceeded limit of 1"
    assert next(worlds) == 6  # two workers in two worlds, and at the end


def test_a_worker_that_has_done_its_work_ends_the_job(job: MakeJob) -> None:
    one = job({"a": 2})

    def work(slot: SlotInfo, events: Events) -> int:
        if slot.rank == 0:
            return 0
        one.meet(slot)  # returns, though the other never comes
        wait_for(lambda: any(event.is_set() for event in events))
        return 3

    assert codes(one.run(2, work)) == {"a[0]": 0, "a[1]": 3}


def test_the_registry_shows_who_waits_and_how_workers_have_ended(job: MakeJob) -> None:
    one = job({"a": 1, "b": 1, "c": 1})
    registry = one.driver._worker_registry

    def work(slot: SlotInfo, events: Events) -> int:
        if slot.hostname == "c":
            wait_for(lambda: registry.count(READY) == 1)
            return 1
        if slot.hostname == "b":
            wait_for(lambda: registry.get(FAILURE) == {("c", 0)})
        assert registry.record_ready(slot.hostname, slot.local_rank) == 1
        return 0

    one.run(3, work)
    assert registry.get(SUCCESS) == {("a", 0), ("b", 0)}
    assert registry.get_recorded_slots() == {("a", 0), ("b", 0), ("c", 0)}
    assert (registry.size(), registry.last_rendezvous()) == (2, 1)


def test_a_rendezvous_that_fails_ends_all_waits_with_the_reason(job: MakeJob) -> None:
    one = job({"a": 1, "b": 1})

    def work(slot: SlotInfo, events: Events) -> int:
        if slot.hostname == "b":
            wait_for(lambda: one.driver._worker_registry.count(READY) == 1)
            return 1  # and this thread has the other worker meet alone
        one.meet(slot)
        return 0

    def init(slots: list[SlotInfo]) -> None:
        if len(slots) == 1:
            raise OSError("the port is taken")

    one.rendezvous.init = init  # type: ignore[method-assign]
    one.run(2, work)
    message = one.driver.get_results().error_message
    assert message == "the driver has failed: OSError: the port is taken"


def test_deadlines_that_cannot_be_kept_end_the_job(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(driver: Driver) -> float:
        raise KeyError("worker 7")

    def work(slot: SlotInfo, events: Events) -> int:
        wait_for(one.driver.finished)
        return 1

    one = job({"a": 1})
    monkeypatch.setattr(Driver, "next_deadline", fails)
    one.run(1, work)
    message = one.driver.get_results().error_message
    assert message == "the driver has failed: KeyError: 'worker 7'"


def test_slots_are_waited_for_until_the_time_out(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ELASTIC_TIMEOUT_SECS", 0.2)
    one = job({"a": 1})
    assert one.driver.wait_for_available_slots(1).host_slots == {"a": 1}
    with pytest.raises(TimeoutException, match="the job needs 2 slots on 1 hosts"):
        one.driver.wait_for_available_slots(2)
    with pytest.raises(TimeoutException, match="the job needs 1 slots on 2 hosts"):
        one.driver.wait_for_available_slots(1, min_hosts=2)


def test_the_time_out_is_that_of_the_variable(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "7")
    assert module.seconds_to_wait(None) == 7
    assert module.seconds_to_wait(8) == 8


def test_whoever_waits_for_slots_hears_that_the_job_was_stopped(job: MakeJob) -> None:
    one = job({"a": 1})
    timer = threading.Timer(0.1, one.driver.stop, ["enough of it"])
    timer.start()
    with pytest.raises(RuntimeError, match="the job is over: enough of it"):
        one.driver.wait_for_available_slots(2)
    timer.join()
    assert one.rendezvous.stops == 1
    assert one.driver.get_results() == module.Results("enough of it", {})


def test_a_first_look_for_hosts_that_fails_ends_the_job() -> None:
    class Broken:
        def find_available_hosts_and_slots(self) -> dict[str, int]:
            raise RuntimeError("no permission")

    driver = ElasticDriver(Rendezvous(), Broken(), min_num_proc=1, max_num_proc=2)
    with pytest.raises(RuntimeError, match="no permission"):
        driver.wait_for_available_slots(1)
    assert driver.finished()


def test_older_names_of_arguments(job: MakeJob) -> None:
    driver = ElasticDriver(Rendezvous(), FixedHosts({"a": 2}), min_np=2, max_np=2)
    driver.wait_for_available_slots(min_np=2)
    driver.start(np=2, create_worker_fn=lambda slot, events: (0, time.time()))
    assert len(driver.get_results().worker_results) == 2
    driver.stop()
    with pytest.raises(TypeError, match="min_num_proc is missing"):
        ElasticDriver(Rendezvous(), FixedHosts({}))
