"""Tests which hosts and slots of an elastic job may be used, in what order, and when again."""

from __future__ import annotations

import math

import pytest

from perseus.common.elastic import HostUpdateResult
from perseus.elastic.host_table import Change, HostTable
from perseus.run.hosts import Host, parse_hosts


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def names(table: HostTable) -> list[str]:
    return [host.name for host in table.usable]


def table_of(hosts: str, cooldown_range: tuple[float, float] | None = None) -> HostTable:
    table = HostTable(cooldown_range, uniform=lambda: 0.5)
    table.update(parse_hosts(hosts))
    return table


def test_the_changes_have_horovod_s_numbers() -> None:
    for name, number in (
        ("NO_UPDATE", HostUpdateResult.no_update),
        ("REMOVED", HostUpdateResult.removed),
        ("ADDED", HostUpdateResult.added),
        ("MIXED", HostUpdateResult.mixed),
    ):
        assert Change[name] == number


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("a:2", "a:2", Change.NO_UPDATE),
        ("a:2,b:2", "b:2,a:2", Change.NO_UPDATE),
        ("a:2", "a:2,b:2", Change.ADDED),
        ("a:2", "a:3", Change.ADDED),
        ("a:2,b:2", "b:2", Change.REMOVED),
        ("a:2", "a:1", Change.REMOVED),
        ("a:2", "b:2", Change.MIXED),
        ("b:2", "b:1,c:1", Change.MIXED),
        ("a:2,b:1", "a:1,b:2", Change.MIXED),
    ],
)
def test_an_update_says_how_the_hosts_have_changed(before: str, after: str, change: Change) -> None:
    assert table_of(before).update(parse_hosts(after)) is change


def test_the_first_hosts_are_added_and_no_hosts_are_none() -> None:
    assert HostTable().update([]) is Change.NO_UPDATE
    table = HostTable()
    assert table.update([Host("a", 2)]) is Change.ADDED
    assert table.update([]) is Change.REMOVED
    assert table.usable == table.known == []


def test_known_hosts_keep_their_order_and_new_ones_come_behind() -> None:
    table = table_of("b:1,a:1,c:1")
    table.update(parse_hosts("d:1,c:2,a:1,b:1"))
    assert table.usable == [Host("b", 1), Host("a", 1), Host("c", 2), Host("d", 1)]
    table.update(parse_hosts("d:1,b:1,c:2"))
    assert names(table) == ["b", "c", "d"]
    table.update(parse_hosts("a:1,b:1,c:2,d:1"))
    assert names(table) == ["b", "c", "d", "a"]


def test_without_a_range_a_host_is_left_out_for_ever() -> None:
    clock = Clock()
    table = HostTable(clock=clock)
    table.update(parse_hosts("a:2,b:2"))
    assert table.blacklist("a") == math.inf
    assert table.is_blacklisted("a") and not table.is_blacklisted("b")
    assert table.usable == [Host("b", 2)]
    assert table.known == [Host("a", 2), Host("b", 2)]
    assert table.count_usable_slots() == 2
    assert table.next_deadline() is None
    clock.now += 1e9
    assert table.refresh() is Change.NO_UPDATE
    assert names(table) == ["b"]


def test_what_happens_to_a_host_that_is_left_out_changes_nothing() -> None:
    table = table_of("a:2,b:2")
    table.blacklist("a")
    for hosts in ("a:4,b:2", "a:1,b:2", "b:2", "b:2,a:2"):
        assert table.update(parse_hosts(hosts)) is Change.NO_UPDATE
        assert names(table) == ["b"]


def test_a_host_may_be_left_out_before_it_is_known() -> None:
    table = table_of("b:2")
    table.blacklist("a")
    assert table.update(parse_hosts("a:2,b:2")) is Change.NO_UPDATE
    assert names(table) == ["b"]


@pytest.mark.parametrize(("uniform", "first"), [(0.0, 20.0), (0.5, 25.0), (1.0, 30.0)])
def test_the_first_cooldown_is_two_to_three_times_the_least(uniform: float, first: float) -> None:
    table = HostTable((10, 1000), uniform=lambda: uniform)
    assert table.blacklist("a") == pytest.approx(first)


def test_each_cooldown_of_a_host_is_twice_as_long_up_to_the_most() -> None:
    clock = Clock()
    table = HostTable((10, 100), clock, uniform=lambda: 0.5)
    table.update(parse_hosts("a:2,b:2"))
    seconds = []
    for _ in range(5):
        seconds.append(table.blacklist("a"))
        deadline = table.next_deadline()
        assert deadline == clock.now + seconds[-1]
        clock.now = deadline
        assert table.refresh() is Change.ADDED
        assert table.next_deadline() is None
    assert seconds == [25, 45, 85, 100, 100]
    assert table.blacklist("b") == 25  # each host for itself


def test_a_thousand_failures_do_no_harm() -> None:
    clock = Clock()
    table = HostTable((1, 3600), clock)
    for _ in range(1100):
        clock.now += table.blacklist("a")
        table.refresh()
    assert table.blacklist("a") == 3600


def test_a_cooldown_ends_only_by_an_update() -> None:
    clock = Clock()
    table = HostTable((1, 10), clock, uniform=lambda: 0.5)
    hosts = parse_hosts("a:2,b:2")
    table.update(hosts)
    assert table.blacklist("a") == 2.5
    clock.now += 2.4
    assert table.update(hosts) is Change.NO_UPDATE
    clock.now += 0.2
    assert table.is_blacklisted("a")
    assert names(table) == ["b"]
    assert table.update(hosts) is Change.ADDED
    assert not table.is_blacklisted("a")


def test_a_host_that_comes_back_comes_last_so_that_rank_0_stays() -> None:
    clock = Clock()
    table = HostTable((1, 10), clock)
    table.update(parse_hosts("a:2,b:2,c:2"))
    table.blacklist("a")
    clock.now += 10
    table.refresh()
    assert names(table) == ["b", "c", "a"]


def test_a_host_that_fails_again_in_its_cooldown_fails_once() -> None:
    clock = Clock()
    table = HostTable((10, 1000), clock, uniform=lambda: 0)
    table.update(parse_hosts("a:2"))
    assert table.blacklist("a") == 20
    clock.now += 5
    assert table.blacklist("a") == 15
    clock.now += 15
    table.refresh()
    assert table.blacklist("a") == 40


def test_the_count_survives_the_host_s_absence() -> None:
    clock = Clock()
    table = HostTable((10, 1000), clock, uniform=lambda: 0)
    table.update(parse_hosts("a:2,b:2"))
    table.blacklist("a")
    table.update(parse_hosts("b:2"))
    clock.now += 20
    assert table.refresh() is Change.NO_UPDATE
    assert table.next_deadline() is None
    assert table.update(parse_hosts("b:2,a:2")) is Change.ADDED
    assert table.blacklist("a") == 40


def test_a_host_with_other_slots_after_its_cooldown_is_added() -> None:
    clock = Clock()
    table = HostTable((1, 10), clock)
    table.update(parse_hosts("a:2,b:2"))
    table.blacklist("a")
    clock.now += 10
    assert table.update(parse_hosts("a:1,b:2")) is Change.ADDED
    assert table.usable == [Host("b", 2), Host("a", 1)]


def test_a_failed_slot_leaves_the_host_s_others() -> None:
    clock = Clock()
    table = HostTable((1, 10), clock, uniform=lambda: 0.5)
    table.update(parse_hosts("a:3,b:1"))
    assert table.fail_slot("a", 1) == 2.5
    assert table.usable == [Host("a", 2), Host("b", 1)]
    assert table.slots_of("a") == [0, 2]
    assert not table.is_blacklisted("a")
    clock.now += 2.5
    assert table.refresh() is Change.ADDED
    assert table.usable == [Host("a", 3), Host("b", 1)]  # in its place, as its ranks have stayed


def test_slots_have_counts_of_their_own() -> None:
    clock = Clock()
    table = HostTable((10, 1000), clock, uniform=lambda: 0)
    table.update(parse_hosts("a:3"))
    assert table.fail_slot("a", 0) == 20
    clock.now += 20
    table.refresh()
    assert table.fail_slot("a", 0) == 40
    assert table.fail_slot("a", 1) == 20
    assert table.blacklist("a") == 20
    assert table.next_deadline() == clock.now + 20


def test_a_host_without_a_slot_left_is_out_and_comes_back_last() -> None:
    clock = Clock()
    table = HostTable((1, 10), clock, uniform=lambda: 0)
    table.update(parse_hosts("a:2,b:1"))
    table.fail_slot("a", 0)
    clock.now += 1
    table.fail_slot("a", 1)
    assert table.usable == [Host("b", 1)]
    clock.now += 1
    assert table.refresh() is Change.ADDED
    assert table.usable == [Host("b", 1), Host("a", 1)]
    assert table.slots_of("a") == [0]


def test_a_failed_slot_that_is_taken_away_is_no_loss() -> None:
    table = table_of("a:2")
    table.fail_slot("a", 1)
    assert table.update(parse_hosts("a:1")) is Change.NO_UPDATE
    assert table.update(parse_hosts("a:3")) is Change.ADDED
    assert table.slots_of("a") == [0, 2]


@pytest.mark.parametrize("bad", [(0.5, 10), (1, 3601), (10, 5), (0, 0), (math.nan, 5)])
def test_a_range_outside_the_limits_is_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(
        ValueError, match="it must be two numbers of seconds from 1 to 3600, the sm"
    ):
        HostTable(bad)
    HostTable((1, 3600))


def test_what_is_drained_is_kept_out_until_it_has_not_been_found_once() -> None:
    table = table_of("a:2,b:2", cooldown_range=(1, 1))
    table.drain("a")
    table.drain_slot("b", 1)
    assert names(table) == ["b"]
    assert table.slots_of("b") == [0]
    assert not table.is_blacklisted("a")
    assert table.next_deadline() is None  # time does not let it in
    assert table.update(parse_hosts("a:3,b:2")) == Change.NO_UPDATE
    assert names(table) == ["b"]
    assert table.update(parse_hosts("b:1")) == Change.NO_UPDATE
    assert table.update(parse_hosts("a:1,b:2")) == Change.ADDED
    assert names(table) == ["b", "a"]
    assert table.slots_of("b") == [0, 1]
