"""Messages from whichever rank sends first."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_groups import group, rank, same, size, values

__all__ = ["group"]  # which every test uses


def say(number: int, to: int, tag: int = 0) -> None:
    dist.send(torch.tensor([float(number)]), to, tag=tag)


def hear(source: int, tag: int = 0) -> int:
    received = torch.zeros(1)
    assert dist.recv(received, source, tag=tag) == source
    return int(received)


def hear_anyone(tag: int = 0) -> tuple[int, int]:
    received = torch.zeros(1)
    return dist.recv(received, tag=tag), int(received)


@pytest.fixture(autouse=True)
def several() -> None:
    if size() == 1:
        pytest.skip("needs another rank")


def test_whoever_is_first_is_received() -> None:
    # Each rank sends when it is told to, the last one first.
    for sender in reversed(range(1, size())):
        if rank() == 0:
            say(sender, sender)
            assert hear_anyone() == (sender, 10 * sender)
        elif rank() == sender:
            say(10 * hear(0), 0)
    dist.barrier()


def test_all_are_received_whatever_their_order() -> None:
    for _ in range(20):
        if rank() == 0:
            heard = [hear_anyone() for _ in range(2 * (size() - 1))]
            assert sorted(heard) == sorted(
                (sender, 10 * sender + i) for sender in range(1, size()) for i in range(2)
            )
        else:
            for i in range(2):
                say(10 * rank() + i, 0)
        dist.barrier()


def test_a_length_from_anyone_and_then_its_data() -> None:
    if rank() == 0:
        for _ in range(size() - 1):
            sender, length = hear_anyone()
            data = torch.zeros(length)
            assert dist.recv(data, sender) == sender
            same(data, values(sender, length))
    else:
        say(100 * rank(), 0)
        dist.send(values(rank(), 100 * rank()), 0)
    dist.barrier()


def test_a_message_with_another_tag_is_not_taken() -> None:
    if rank() == 0:
        work = dist.irecv(received := torch.zeros(1), tag=7)
        say(0, 1)
        assert hear_anyone(tag=8) == (1, 8)
        assert not work.is_completed()
        say(0, 1)
        work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert (work._source_rank(), int(received)) == (1, 7)
    elif rank() == 1:
        for tag in (8, 7):
            hear(0)
            say(tag, 0, tag=tag)
    dist.barrier()


def test_what_was_received_by_its_source_is_not_found_again() -> None:
    if rank() == 0:
        # The first message is seen while this waits for the second, and taken by its source.
        work = dist.irecv(torch.zeros(1), tag=3)
        say(0, 1)
        work.wait()
        assert hear(1, tag=3) == 2
        say(0, 1)
        assert hear_anyone(tag=3) == (1, 3)
    elif rank() == 1:
        hear(0)
        say(1, 0, tag=3)
        say(2, 0, tag=3)
        hear(0)
        say(3, 0, tag=3)
    dist.barrier()


def test_beside_collectives_and_in_a_group() -> None:
    members = list(range(1, size()))
    some = dist.new_group(members)
    total = torch.ones(2)
    if rank() == 0 or size() == 2:
        dist.all_reduce(total)
    elif rank() == size() - 1:
        received = torch.zeros(3)
        work = dist.irecv(received, group=some)
        dist.all_reduce(total)
        work.wait()
        assert dist.get_global_rank(some, work._source_rank()) == 1
        same(received, values(1, 3))
    else:
        dist.all_reduce(total)
        if rank() == 1:
            dist.send(values(1, 3), size() - 1, group=some)
    assert total.tolist() == [size()] * 2
    dist.barrier()


def test_a_time_out_says_what_for() -> None:
    work = dist.irecv(torch.zeros(1), tag=99)
    with pytest.raises(
        RuntimeError,
        match="the recv from any rank with tag 99 is not complete after the timeout of 0:00",
    ):
        work.wait(timedelta(milliseconds=50))
    dist.barrier()
    # It goes on, as somebody may still send: each rank sends to the next one.
    sent = dist.isend(torch.tensor([float(rank())]), (rank() + 1) % size(), tag=99)
    work.wait()
    sent.wait()
    assert work._source_rank() == (rank() - 1) % size()
    dist.barrier()


def test_several_at_once_get_a_message_each() -> None:
    if rank() == 0:
        received = [torch.zeros(1) for _ in range(size() - 1)]
        works = [dist.irecv(tensor) for tensor in received]
        for work in works:
            work.wait()
        assert sorted(int(tensor) for tensor in received) == list(range(1, size()))
        assert sorted(work._source_rank() for work in works) == list(range(1, size()))
    else:
        say(rank(), 0)
    dist.barrier()
