"""send and recv of torch.distributed over Perseus."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
import torch.distributed as dist
from single_rank_errors import fails_everywhere
from torch_groups import group, meet, rank, same, size, values

from perseus_core import HorovodInternalError

__all__ = ["group"]  # which every test uses


pytestmark = pytest.mark.usefixtures("two_ranks")  # there must be a rank to send to


def pairs() -> list[tuple[int, int]]:
    return [(a, b) for a in range(size()) for b in range(size()) if a != b]


def finish(works: Iterable[dist.Work]) -> None:
    for work in works:
        work.wait()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.cfloat]
)
def test_send_and_recv_between_all_pairs(dtype: torch.dtype) -> None:
    for sender, receiver in pairs():
        if rank() == sender:
            dist.send(values(sender, 3, 5, dtype=dtype), receiver)
        if rank() == receiver:
            tensor = torch.zeros(3, 5, dtype=dtype)
            assert dist.recv(tensor, sender) == sender
            same(tensor, values(sender, 3, 5, dtype=dtype))


def test_what_is_not_contiguous_large_empty_or_a_scalar() -> None:
    tensors = [values(7, 4, 6).t(), values(7, 300, 1000), values(7, 0, 3), values(7)]
    for tensor in tensors:
        if rank() == 0:
            dist.send(tensor, 1)
        if rank() == 1:
            target = torch.zeros(tensor.shape[::-1])
            target = target.t() if target.dim() == 2 else target
            dist.recv(target, 0)
            same(target, tensor)


def test_many_messages_both_ways_come_in_their_order() -> None:
    peers = [r for r in range(size()) if r != rank()]
    count = 40
    sent = [torch.full((i % 7 + 1,), 100.0 * rank() + i) for i in range(count)]
    received = {peer: [torch.zeros(i % 7 + 1) for i in range(count)] for peer in peers}
    works = []
    for i in range(count):
        for peer in peers:
            works.append(dist.isend(sent[i], peer))
            works.append(dist.irecv(received[peer][i], peer))
    finish(works)
    for peer in peers:
        for i, tensor in enumerate(received[peer]):
            assert tensor.tolist() == [100.0 * peer + i] * (i % 7 + 1)


def test_tags_tell_messages_apart() -> None:
    """Received in another order than sent."""
    tags = list(range(10))
    if rank() == 0:
        finish([dist.isend(torch.tensor([10.0 * tag]), 1, tag=tag) for tag in tags])
    if rank() == 1:
        tensors = [torch.zeros(1) for _ in tags]
        finish([dist.irecv(tensors[tag], 0, tag=tag) for tag in reversed(tags)])
        assert [tensor.item() for tensor in tensors] == [10.0 * tag for tag in tags]


def test_a_ring_in_a_batch() -> None:
    following, before = (rank() + 1) % size(), (rank() - 1) % size()
    received = torch.zeros(4)
    operations = [
        dist.P2POp(dist.isend, values(rank(), 4), following),
        dist.P2POp(dist.irecv, received, before),
    ]
    if rank() % 2:
        operations.reverse()
    finish(dist.batch_isend_irecv(operations))
    same(received, values(before, 4))


def test_objects() -> None:
    if not hasattr(dist, "send_object_list"):
        pytest.skip("this PyTorch has no send_object_list")
    if rank() == 0:
        dist.send_object_list([{"from": 0}, "text"], 1)
    if rank() == 1:
        box = [None, None]
        assert dist.recv_object_list(box, 0) == 0
        assert box == [{"from": 0}, "text"]


def test_a_message_that_waits_keeps_nothing_else_back() -> None:
    """Neither collectives nor messages under another tag or between other ranks."""
    waiting = torch.zeros(3)
    work = dist.irecv(waiting, 0, tag=5) if rank() == 1 else None
    for step in range(5):
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
        assert tensor[0] == size()
        if rank() == 0:
            dist.send(torch.full((2,), float(step)), 1)
        if rank() == 1:
            other = torch.zeros(2)
            dist.recv(other, 0)
            assert other.tolist() == [step] * 2
    if work is not None:
        assert not work.is_completed()
    dist.barrier()
    if rank() == 0:
        dist.send(torch.ones(3), 1, tag=5)
    if work is not None:
        work.wait()
        assert waiting.tolist() == [1.0] * 3


def test_a_pipeline_beside_collectives() -> None:
    """Activations go up and gradients come down while all ranks reduce something."""
    last = size() - 1
    for micro in range(6):
        reduced = torch.full((500,), float(rank()))
        reducing = dist.all_reduce(reduced, async_op=True)
        activation = torch.full((50,), float(micro))
        if rank() > 0:
            dist.recv(activation, rank() - 1)
        activation += 1
        if rank() < last:
            dist.send(activation, rank() + 1)
            dist.recv(activation, rank() + 1, tag=1)
        if rank() > 0:
            dist.send(activation, rank() - 1, tag=1)
        assert activation[0] == micro + size()
        reducing.wait()
        assert reduced[0] == sum(range(size()))


def test_ranks_are_those_of_the_world_in_a_group_too() -> None:
    ends = dist.new_group([0, size() - 1])
    most = dist.new_group(list(range(1, size())))
    if rank() == 0:
        dist.send(torch.tensor([3.0]), size() - 1, group=ends)
    if rank() == size() - 1:
        tensor = torch.zeros(1)
        dist.recv(tensor, 0, group=ends)
        assert tensor.item() == 3.0
    if size() > 2 and rank() == size() - 1:
        dist.send(torch.tensor([4.0]), 1, group=most)
    if size() > 2 and rank() == 1:
        tensor = torch.zeros(1)
        dist.recv(tensor, size() - 1, group=most)
        assert tensor.item() == 4.0
    for one, members in ((ends, (0, size() - 1)), (most, range(1, size()))):
        if rank() in members:
            dist.destroy_process_group(one)


def test_the_future_of_a_message() -> None:
    if rank() == 0:
        dist.isend(torch.ones(2), 1).get_future().wait()
    if rank() == 1:
        work = dist.irecv(torch.zeros(2), 0)
        (tensor,) = work.get_future().wait()
        assert tensor.tolist() == [1.0] * 2
        assert work.is_success() and work.exception() is None


#: A rank keeps no message of so many floats for another that sends before it is asked.
LARGE = 2_000_000


def test_sizes_that_differ_are_an_error() -> None:
    for elements in (3, LARGE):
        if rank() == 0 and elements == 3:
            dist.send(torch.ones(3), 1)  # it is complete before anybody asks for it
        elif rank() == 0:
            with pytest.raises(HorovodInternalError, match="and number of elements"):
                dist.send(torch.ones(elements), 1)
        if rank() == 1:
            with pytest.raises(HorovodInternalError, match="and number of elements"):
                dist.recv(torch.ones(elements + 1), 0)
        both_go_on()


def test_types_that_differ_are_an_error() -> None:
    """Of the same size: the bits of one type mean nothing in the other."""
    if rank() == 0:
        dist.send(torch.ones(4), 1)  # it is complete before anybody asks for it
    if rank() == 1:
        with pytest.raises(HorovodInternalError, match=r"float32\[4\].*int32\[4\]"):
            dist.recv(torch.ones(4, dtype=torch.int32), 0)
    both_go_on()


def test_a_mistake_of_one_fails_on_both() -> None:
    bad = torch.ones(2, device="meta")
    good = torch.ones(LARGE)

    def message(tensor: torch.Tensor) -> None:
        if rank() == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)

    if rank() < 2:
        for faulty in range(2):
            fails_everywhere(
                [faulty], lambda: message(bad), lambda: message(good), ValueError, "on meta"
            )
    both_go_on()


def both_go_on() -> None:
    if rank() == 0:
        dist.send(torch.ones(3), 1)
    if rank() == 1:
        tensor = torch.zeros(3)
        dist.recv(tensor, 0)
        assert tensor.tolist() == [1.0] * 3
    dist.barrier()


def test_what_cannot_be_done_says_so() -> None:
    with pytest.raises(ValueError, match=r"cannot send to itself|Invalid destination rank"):
        dist.isend(torch.zeros(1), rank())
    dist.barrier()


def test_messages_after_torch_distributed_was_left_and_joined_again() -> None:
    both_go_on()
    dist.destroy_process_group()
    meet()
    both_go_on()
    following, before = (rank() + 1) % size(), (rank() - 1) % size()
    received = torch.zeros(4)
    finish([dist.isend(values(rank(), 4), following), dist.irecv(received, before)])
    same(received, values(before, 4))
