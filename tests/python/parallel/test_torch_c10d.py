"""The backend "perseus" of torch.distributed."""

from __future__ import annotations

import inspect
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from single_rank_errors import fails_everywhere, faulty_ranks
from torch_groups import (
    all_gather_single,
    everybodys,
    group,
    meet,
    rank,
    reduce_scatter_single,
    same,
    size,
    values,
)

import perseus.torch.horovod as hvd
import perseus_core as core
from perseus.torch.c10d import NAME, PerseusProcessGroup

__all__ = ["group"]  # which every test uses


def test_its_name() -> None:
    assert dist.get_backend() == NAME == "perseus"


REDUCED = {
    dist.ReduceOp.SUM: lambda stack: stack.sum(0),
    dist.ReduceOp.AVG: lambda stack: stack.mean(0),
    dist.ReduceOp.MIN: lambda stack: stack.min(0).values,
    dist.ReduceOp.MAX: lambda stack: stack.max(0).values,
    dist.ReduceOp.PRODUCT: lambda stack: stack.prod(0),
}


@pytest.mark.parametrize("op", list(REDUCED), ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_all_reduce(op: dist.ReduceOp, dtype: torch.dtype) -> None:
    if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
        pytest.skip("an average of whole numbers is cut off")
    tensor = values(rank(), 5, 7, dtype=dtype)
    dist.all_reduce(tensor, op)
    expected = REDUCED[op](torch.stack(everybodys(5, 7, dtype=dtype)).double())
    torch.testing.assert_close(tensor, expected.to(dtype))


def test_all_reduce_of_what_is_not_contiguous_complex_or_empty() -> None:
    tensor = values(rank(), 6, 4).t()
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    same(tensor, torch.stack(everybodys(6, 4)).sum(0).t())
    numbers = torch.complex(values(rank(), 3), values(rank() + 1, 3))
    dist.all_reduce(numbers)
    same(numbers.real, torch.stack(everybodys(3)).sum(0))
    dist.all_reduce(torch.ones(0))


def test_many_at_once_complete_by_future() -> None:
    tensors = [values(rank(), 100 + i) for i in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i, work in enumerate(works):
        (result,) = work.get_future().wait()
        same(result, torch.stack(everybodys(100 + i)).sum(0))
        assert result.data_ptr() == tensors[i].data_ptr()


def test_coalesced() -> None:
    tensors = [values(rank(), 3), values(rank(), 2, 2, dtype=torch.int32)]
    dist.distributed_c10d._get_default_group().allreduce_coalesced(
        tensors, dist.AllreduceCoalescedOptions()
    ).wait()
    same(tensors[0], torch.stack(everybodys(3)).sum(0))
    same(tensors[1], torch.stack(everybodys(2, 2, dtype=torch.int32)).sum(0).int())


@pytest.mark.parametrize("root", [0, -1])
def test_rooted(root: int) -> None:
    root %= size()
    tensor = values(rank(), 4, 3).t()
    dist.broadcast(tensor, root)
    same(tensor, values(root, 4, 3).t())

    tensor = values(rank(), 9)
    dist.reduce(tensor, root)
    same(tensor, torch.stack(everybodys(9)).sum(0) if rank() == root else values(rank(), 9))

    gathered = [torch.zeros(2, 3) for _ in range(size())] if rank() == root else None
    dist.gather(values(rank(), 2, 3), gathered, root)
    for part, expected in zip(gathered or [], everybodys(2, 3), strict=rank() == root):
        same(part, expected)

    mine = torch.zeros(2, 3)
    dist.scatter(mine, everybodys(2, 3) if rank() == root else None, root)
    same(mine, values(rank(), 2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bool, torch.bfloat16])
def test_all_gather(dtype: torch.dtype) -> None:
    parts = [torch.zeros(3, 2, dtype=dtype) for _ in range(size())]
    dist.all_gather(parts, values(rank(), 3, 2, dtype=dtype))
    for part, expected in zip(parts, everybodys(3, 2, dtype=dtype), strict=True):
        same(part, expected)
    whole = torch.zeros(3 * size(), 2, dtype=dtype)
    all_gather_single(whole, values(rank(), 3, 2, dtype=dtype))
    same(whole, torch.cat(everybodys(3, 2, dtype=dtype)))


def test_reduce_scatter() -> None:
    whole = torch.stack(everybodys(size(), 3)).sum(0)
    output = torch.zeros(3)
    reduce_scatter_single(output, values(rank(), size(), 3))
    same(output, whole[rank()])
    dist.reduce_scatter(output, list(values(rank(), size(), 3)))
    same(output, whole[rank()])
    # Parts of different sizes.
    ends = [r * (r + 1) // 2 for r in range(size() + 1)]
    whole = torch.stack(everybodys(ends[-1])).sum(0)
    mine = values(rank(), ends[-1])
    output = torch.zeros(rank() + 1)
    dist.reduce_scatter(output, [mine[ends[r] : ends[r + 1]] for r in range(size())])
    same(output, whole[ends[rank()] : ends[rank() + 1]])


def test_all_to_all() -> None:
    output = torch.zeros(size(), 2)
    dist.all_to_all_single(output, values(rank(), size(), 2))
    same(output, torch.stack([values(r, size(), 2)[rank()] for r in range(size())]))
    # Rank r sends i rows of r to rank i.
    splits = list(range(size()))
    rows = torch.full((sum(splits), 2), float(rank()))
    output = torch.zeros(size() * rank(), 2)
    dist.all_to_all_single(output, rows, [rank()] * size(), splits)
    same(output, torch.arange(size()).repeat_interleave(rank()).float()[:, None].expand(-1, 2))
    received = [torch.zeros(rank() + 1) for _ in range(size())]
    dist.all_to_all(received, [torch.full((i + 1,), float(rank())) for i in range(size())])
    for r, part in enumerate(received):
        same(part, torch.full((rank() + 1,), float(r)))


def test_barrier_and_objects() -> None:
    dist.barrier()
    gathered = [None] * size()
    dist.all_gather_object(gathered, {"rank": rank()})
    assert gathered == [{"rank": r} for r in range(size())]
    box = ["from 0" if rank() == 0 else None]
    dist.broadcast_object_list(box, 0)
    assert box == ["from 0"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_barrier_ends_the_collectives_before_it(is_async: bool) -> None:
    for count in (3, 1 << 20):
        tensor, gathered = torch.ones(count), torch.zeros(size() * count)
        dist.all_reduce(tensor, async_op=True)
        all_gather_single(gathered, torch.ones(count), async_op=True)
        barrier = dist.barrier(async_op=is_async)
        if is_async:
            barrier.wait()
        assert tensor.unique().tolist() == [size()]
        assert gathered.unique().tolist() == [1.0]


def test_groups_are_made_by_their_members_alone() -> None:
    pairs = [[r, (r + 1) % size()] for r in range(size())] if size() > 1 else [[0]]
    groups = [dist.new_group(sorted(set(pair))) for pair in pairs]
    for pair, own in zip(pairs, groups, strict=True):
        if rank() not in pair:
            continue
        tensor = values(rank(), 10)
        dist.all_reduce(tensor, group=own)
        same(tensor, torch.stack([values(r, 10) for r in sorted(set(pair))]).sum(0))
        tensor = values(rank(), 10)
        dist.broadcast(tensor, max(pair), group=own)  # a rank of the world
        same(tensor, values(max(pair), 10))
        assert isinstance(own, PerseusProcessGroup)
        if hasattr(dist.ProcessGroup, "group_name"):  # which PyTorch 2.1 has not
            assert own.group_name
    for pair, own in zip(pairs, groups, strict=True):
        if rank() in pair:
            dist.destroy_process_group(own)


@pytest.mark.skipif(
    "shutdown()" not in inspect.getsource(inspect.unwrap(dist.destroy_process_group)),
    reason="this PyTorch does not tell a group that it has been destroyed",
)
def test_a_group_that_one_member_destroys_ends_for_all() -> None:
    if size() == 1:
        return
    own = dist.new_group(list(range(size())))
    dist.barrier(own)
    if rank() == 1:
        dist.destroy_process_group(own)
    else:
        with pytest.raises(RuntimeError, match=r"rank 1 .*has closed process set"):
            dist.all_reduce(values(rank(), 10), group=own)
        dist.destroy_process_group(own)
    dist.barrier()


def test_what_cannot_be_done_says_so() -> None:
    with pytest.raises(RuntimeError, match="it takes integers and bool"):
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
    if size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match="must submit the same shape"):
            dist.all_reduce(torch.ones(2 + rank()))
        work = dist.all_reduce(torch.ones(2 + rank()), async_op=True)
        with pytest.raises(RuntimeError, match="must submit the same shape"):
            work.get_future().wait()
    dist.barrier()


def collective(name: str, wrong: dict[int, torch.Tensor] | None = None, **options) -> None:
    """Calls a function of dist with valid arguments, except those in `wrong`, by position."""

    def parts() -> list[torch.Tensor]:
        return [torch.zeros(2) for _ in range(size())]

    function, *arguments = {
        "all_reduce": (dist.all_reduce, torch.ones(2)),
        "reduce": (dist.reduce, torch.ones(2), 0),
        "broadcast": (dist.broadcast, torch.ones(2), 0),
        "all_gather": (dist.all_gather, parts(), torch.ones(2)),
        "all_gather_single": (all_gather_single, torch.zeros(2 * size()), torch.ones(2)),
        "reduce_scatter": (dist.reduce_scatter, torch.zeros(2), parts()),
        "reduce_scatter_single": (reduce_scatter_single, torch.zeros(2), torch.ones(2 * size())),
        "all_to_all": (dist.all_to_all, parts(), parts()),
        "all_to_all_single": (dist.all_to_all_single, torch.zeros(size()), torch.ones(size())),
    }[name]
    for position, value in (wrong or {}).items():
        arguments[position] = value
    function(*arguments, **options)


def elsewhere(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="meta")


MISTAKES = [
    ("all_reduce", lambda: {"op": dist.ReduceOp.BAND}, "it takes integers"),
    ("all_reduce", lambda: {"wrong": {0: elsewhere(2)}}, "on meta"),
    ("reduce", lambda: {"op": dist.ReduceOp.BXOR}, "it takes integers"),
    ("reduce", lambda: {"wrong": {0: elsewhere(2)}}, "on meta"),
    ("broadcast", lambda: {"wrong": {0: elsewhere(2)}}, "on meta"),
    ("all_gather", lambda: {"wrong": {1: elsewhere(2)}}, "on meta"),
    ("all_gather_single", lambda: {"wrong": {1: elsewhere(2)}}, "on meta"),
    ("reduce_scatter", lambda: {"op": dist.ReduceOp.BOR}, "it takes integers"),
    ("reduce_scatter_single", lambda: {"wrong": {1: torch.ones(2 * size() + 1)}}, "the input has"),
    ("reduce_scatter_single", lambda: {"wrong": {1: elsewhere(2 * size())}}, "on meta"),
    ("all_to_all", lambda: {"wrong": {1: [elsewhere(2)] * size()}}, "on meta"),
    ("all_to_all_single", lambda: {"wrong": {1: elsewhere(size())}}, "on meta"),
]


def test_a_wait_that_times_out_says_what_for() -> None:
    if size() == 1:
        pytest.skip("needs a rank to wait for")
    tensor = torch.ones(2)
    if rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(
            RuntimeError, match=r"^c10d\.allreduce is not complete after the timeout of 0:00:00"
        ):
            work.wait(timedelta(milliseconds=50))
        core.barrier()
        work.wait()
    else:
        core.barrier()
        dist.all_reduce(tensor)
    assert tensor.tolist() == [size()] * 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name, wrong, reason", MISTAKES)
def test_a_mistake_of_one_rank_fails_on_all(name, wrong, reason) -> None:
    for faulty in faulty_ranks():
        fails_everywhere(
            [faulty],
            lambda: collective(name, **wrong()),
            lambda: collective(name),
            RuntimeError if "integers" in reason else ValueError,
            reason,
        )
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [size()] * 2
        collective(name)


@pytest.mark.timeout(60)
def test_a_mistake_of_one_rank_among_several_tensors() -> None:
    """Coalesced operations fail together, and are counted alike on all ranks."""

    def gather(*wrong: torch.Tensor) -> None:
        inputs = [torch.ones(2), torch.ones(3), *wrong]
        outputs = [[torch.zeros(t.shape) for t in inputs] for _ in range(size())]
        dist.distributed_c10d._get_default_group().allgather_coalesced(outputs, inputs).wait()
        assert all(part.sum() == part.numel() for row in outputs for part in row)

    for faulty in faulty_ranks():
        fails_everywhere(
            [faulty],
            lambda: gather(elsewhere(4)),
            lambda: gather(torch.ones(4)),
            ValueError,
            "on meta",
        )
        gather(torch.ones(4))


def test_torch_distributed_can_be_left_and_joined_again() -> None:
    group = dist.new_group(list(range(size())))
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group()
    meet()
    again = dist.new_group(list(range(size())))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=again)
    assert tensor.item() == size()
