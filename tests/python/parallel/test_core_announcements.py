"""Announcements: all ranks read the same number at the same point, whoever announces and when."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import perseus_core as core

SMALL, MEDIUM, LARGE = 1, 3_000, 300_000


@pytest.fixture
def base() -> int:
    """A number that all have heard of and nobody has exceeded; each test announces higher ones."""
    core.init()
    core.barrier()
    return core.announced()


class Announcer(threading.Thread):
    """Announces rising numbers at random times until it is stopped."""

    def __init__(self, base: int, seed: int, pause: float) -> None:
        super().__init__(daemon=True)
        self.base, self.pause = base, pause
        #: The last number that has certainly been announced.
        self.told = base
        self._random = random.Random(seed)
        self._stop_it = threading.Event()

    def run(self) -> None:
        while not self._stop_it.wait(self._random.uniform(0, self.pause)):
            number = self.told + 1 + self._random.randrange(3)
            core.announce(number)
            self.told = number

    def stop(self) -> None:
        self._stop_it.set()
        self.join()


@contextmanager
def announcing(base: int, ranks: list[int], pause: float = 0.003) -> Iterator[Announcer]:
    announcer = Announcer(base, core.rank(), pause)
    if core.rank() in ranks:
        announcer.start()
    try:
        yield announcer
    finally:
        if core.rank() in ranks:
            announcer.stop()


def one_operation(which: int, count: int) -> None:
    data = np.ones(count, np.float32)
    if which == 0:
        core.allreduce(data, name=f"announcing.{count}")
    elif which == 1:
        core.allgather(data, name=f"announcing.{count}")
    elif which == 2:
        core.broadcast(data, count % core.size(), name=f"announcing.{count}")
    elif which == 3:
        core.alltoall(np.ones(count * core.size(), np.float32), name=f"announcing.{count}")
    elif which == 4:
        core.reducescatter(data, core.ReduceOp.SUM, name=f"announcing.{count}")
    elif which == 5:
        core.grouped_allreduce([data, data[:1]], name=f"announcing.{count}")
    else:
        core.barrier()


def several_at_once(count: int) -> None:
    data = np.ones(count, np.float32)
    handles = [
        core.allreduce_async(data, name="announcing.several.0"),
        core.allgather_async(data[:SMALL], name="announcing.several.1"),
        core.broadcast_async(data[:SMALL], 0, name="announcing.several.2"),
    ]
    for handle in handles:
        handle.wait()


def assert_same_on_all(seen: list[int]) -> None:
    records = core.allgather(np.array([seen], np.int64), name="records")
    for other in range(core.size()):
        assert records[other].tolist() == seen, f"rank {other} has read other numbers"


@pytest.mark.parametrize("pause", [0.0005, 0.003, 0.02])
@pytest.mark.parametrize("announcers", ["first", "last", "all"])
def test_all_ranks_read_the_same_number_after_each_step(
    base: int, announcers: str, pause: float
) -> None:
    everyone = list(range(core.size()))
    ranks = {"first": everyone[:1], "last": everyone[-1:], "all": everyone}[announcers]
    steps = random.Random(5)  # the same program on all ranks
    seen = []
    with announcing(base, ranks, pause) as announcer:
        for _ in range(80):
            count = steps.choice([SMALL, SMALL, MEDIUM, LARGE])
            which = steps.randrange(8)
            told = announcer.told
            if which == 7:
                several_at_once(count)
            else:
                one_operation(which, count)
            seen.append(core.announced())
            # What this rank had announced before it submitted the step has come with it.
            assert seen[-1] >= told
    core.barrier()
    seen.append(core.announced())
    assert seen == sorted(seen)
    if announcer.told > base:
        assert seen[-1] >= announcer.told
    assert_same_on_all(seen)


def test_a_number_comes_within_two_operations_though_one_is_under_way(base: int) -> None:
    """It is announced while the others may have begun the first of the two."""
    for turn in range(40):
        number = base + 1 + turn
        announcer = turn % core.size()
        first = core.allreduce_async(np.ones(SMALL), name="first")
        if core.rank() == announcer:
            core.announce(number)
        first.wait()
        core.barrier()
        assert core.announced() == number


@pytest.mark.parametrize("which", range(7))
def test_an_operation_carries_what_a_rank_has_announced_before(base: int, which: int) -> None:
    number = base
    for count in (SMALL, MEDIUM, LARGE):
        for announcer in range(core.size()):
            number += 1
            if core.rank() == announcer:
                core.announce(number)
            one_operation(which, count * core.size())
            assert core.announced() == number


def test_ranks_that_wait_in_another_order_read_the_same_once_all_is_done(base: int) -> None:
    names = [f"order.{i}" for i in range(12)]
    order = names if core.rank() % 2 == 0 else names[::-1]
    seen = []
    with announcing(base, [core.size() - 1], pause=0.001):
        for _ in range(20):
            handles = [core.allreduce_async(np.ones(SMALL), name=name) for name in order]
            time.sleep(0.0002 * core.rank())
            for handle in handles:
                handle.wait()
            seen.append(core.announced())
    assert_same_on_all(seen)


def test_operations_of_a_process_set_change_nothing(base: int) -> None:
    if core.size() == 1:
        pytest.skip("a rank alone has no other set than the world")
    members = [0] if core.size() == 2 else [0, core.size() - 1]
    subset = core.add_process_set(members)
    try:
        assert core.announced() == base
        core.announce(base + 1)
        if core.rank() in members:
            for count in (SMALL, LARGE):
                data = np.ones(count, np.float32)
                core.allreduce(data, name="of members", process_set=subset)
                core.allgather(data, name="of members", process_set=subset)
                core.barrier(process_set=subset)
        assert core.announced() == base
        core.barrier()
        assert core.announced() == base + 1
    finally:
        core.remove_process_set(subset)


def test_adding_and_removing_a_set_and_a_join_carry_a_number(base: int) -> None:
    core.announce(base + 1)
    if core.size() > 1:
        subset = core.add_process_set([core.size() - 1])
        assert core.announced() == base + 1
        core.announce(base + 2)
        core.remove_process_set(subset)
        assert core.announced() == base + 2
    core.announce(base + 3)
    core.join()
    assert core.announced() == base + 3


def test_a_rank_that_has_joined_announces_with_the_others_operations(base: int) -> None:
    if core.rank() == core.size() - 1:
        core.announce(base + 1)
        core.join()
    else:
        for _ in range(3):
            core.allreduce(np.ones(SMALL), name="of those left")
        assert core.announced() == base + 1
        core.join()
    assert core.announced() == base + 1


def test_a_failed_operation_brings_nothing(base: int) -> None:
    if core.size() == 1:
        pytest.skip("a rank alone cannot differ from itself")
    core.announce(base + 1)
    with pytest.raises(core.MismatchError):
        core.allreduce(np.ones(1 + core.rank() % 2), name="differs")
    assert core.announced() == base
    core.barrier()
    assert core.announced() == base + 1


def test_lower_numbers_have_no_effect(base: int) -> None:
    core.announce(base + 9)
    core.announce(base + 4)
    core.announce(0)
    core.barrier()
    assert core.announced() == base + 9


def test_announcing_sends_nothing_by_itself(base: int) -> None:
    core.barrier()
    before = core.counters()["agreements"]
    core.announce(base + 1)
    time.sleep(0.05)
    assert core.counters()["agreements"] == before
    core.barrier()
    assert core.counters()["agreements"] == before + 1
    assert core.announced() == base + 1


def test_another_world_begins_at_zero(base: int) -> None:
    core.announce(base + 1)
    core.barrier()
    assert core.announced() == base + 1
    core.shutdown()
    assert core.announced() == 0
    with pytest.raises(core.NotInitializedError):
        core.announce(base + 2)
    core.init()
    assert core.announced() == 0
    core.barrier()
    assert core.announced() == 0
    core.announce(1)
    core.barrier()
    assert core.announced() == 1


@pytest.mark.parametrize(
    ("number", "error"),
    [(-1, ValueError), (2**64, ValueError), (1.5, TypeError), ("7", TypeError), (None, TypeError)],
)
def test_a_number_that_is_none_is_refused_here(
    base: int, number: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"the announced number is .*; it must be "):
        core.announce(number)  # type: ignore[arg-type]
    core.barrier()
    assert core.announced() == base


def test_numpy_integers_and_the_largest_number(base: int) -> None:
    core.announce(np.int64(base + 1))  # type: ignore[arg-type]
    core.barrier()
    assert core.announced() == base + 1
    core.shutdown()  # nothing is above the largest number
    core.init()
    core.announce(2**64 - 1)
    core.barrier()
    assert core.announced() == 2**64 - 1
    core.shutdown()
    core.init()
