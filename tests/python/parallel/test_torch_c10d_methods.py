"""A group's own methods, in all forms in which PyTorch's groups take them, and its time-out."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_groups import everybodys, group, rank, same, size, values

import perseus_core as core

__all__ = ["group"]  # which every test uses


def pg() -> dist.ProcessGroup:
    return dist.distributed_c10d._get_default_group()


def parts(*shape: int) -> list[torch.Tensor]:
    return [torch.zeros(shape) for _ in range(size())]


def test_short_forms() -> None:
    last = size() - 1
    total = torch.stack(everybodys(4)).sum(0)
    limit = timedelta(seconds=60)

    tensor = values(rank(), 4)
    pg().broadcast(tensor, last).wait()
    same(tensor, values(last, 4))
    tensor = values(rank(), 4)
    pg().broadcast(tensor=tensor, root=last, timeout=limit).wait()
    same(tensor, values(last, 4))

    tensor = values(rank(), 4)
    pg().allreduce(tensor).wait()
    same(tensor, total)
    for given in (values(rank(), 4), [values(rank(), 4)]):
        pg().allreduce(given, dist.ReduceOp.MAX).wait()
        same(given[0] if isinstance(given, list) else given, torch.stack(everybodys(4)).amax(0))

    tensor = values(rank(), 4)
    pg().reduce(tensor, last).wait()
    same(tensor, total if rank() == last else values(rank(), 4))

    gathered = parts(4)
    pg().allgather(gathered, values(rank(), 4)).wait()
    same(torch.stack(gathered), torch.stack(everybodys(4)))
    gathered = parts(4)
    pg().gather(gathered if rank() == last else [], values(rank(), 4), last).wait()
    if rank() == last:
        same(torch.stack(gathered), torch.stack(everybodys(4)))
    tensor = torch.zeros(4)
    pg().scatter(tensor, everybodys(4) if rank() == last else [], last).wait()
    same(tensor, values(rank(), 4))

    tensor = torch.zeros(4)
    pg().reduce_scatter(tensor, everybodys(4)).wait()
    same(tensor, size() * values(rank(), 4))
    received = parts(4)
    pg().alltoall(received, [values(rank(), 4) for _ in range(size())], limit).wait()
    same(torch.stack(received), torch.stack(everybodys(4)))
    output = torch.zeros(size())
    pg().alltoall_base(output, torch.full((size(),), rank() + 1.0), [], [], limit).wait()
    assert output.tolist() == [r + 1.0 for r in range(size())]
    pg().barrier(timeout=limit).wait()
    pg().barrier(limit).wait()


def test_options_may_be_left_out() -> None:
    total = torch.stack(everybodys(4)).sum(0)
    tensor = values(rank(), 4)
    pg().allreduce([tensor]).wait()
    same(tensor, total)
    tensor = values(rank(), 4)
    pg().broadcast([tensor]).wait()
    same(tensor, values(0, 4))
    tensor = values(rank(), 4)
    pg().reduce(tensors=[tensor]).wait()
    same(tensor, total if rank() == 0 else values(rank(), 4))
    gathered = [parts(4)]
    pg().allgather(gathered, [values(rank(), 4)]).wait()
    same(torch.stack(gathered[0]), torch.stack(everybodys(4)))
    tensor = torch.zeros(4)
    pg().reduce_scatter([tensor], [everybodys(4)]).wait()
    same(tensor, size() * values(rank(), 4))
    received = parts(4)
    pg().alltoall(received, [values(rank(), 4) for _ in range(size())]).wait()
    same(torch.stack(received), torch.stack(everybodys(4)))
    pg().barrier().wait()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="they must be"):
        pg().allreduce([torch.ones(1)], dist.AllreduceOptions(), 5, "nonsense")
    with pytest.raises(TypeError, match="they must be"):
        pg().broadcast([torch.ones(1)], nonsense=1)
    dist.barrier()


@pytest.mark.parametrize("how", ["set_pg_timeout", "of some ranks", "set_timeout"])
def test_the_time_out_can_be_changed(how: str) -> None:
    if size() == 1:
        pytest.skip("needs a rank to wait for")
    if how != "set_timeout" and not hasattr(dist.distributed_c10d, "_set_pg_timeout"):
        pytest.skip("this PyTorch has no such function")

    def set_time_out(time_out: timedelta) -> None:
        if how == "set_timeout":
            own.set_timeout(time_out)
        else:
            dist.distributed_c10d._set_pg_timeout(time_out, own)

    own = dist.new_group([0, 1]) if how == "of some ranks" else pg()
    if own is not dist.GroupMember.NON_GROUP_MEMBER:
        set_time_out(timedelta(seconds=0.3))
    if rank() == 0:
        work = dist.all_reduce(torch.ones(2), group=own, async_op=True)
        with pytest.raises(RuntimeError, match=r"is not complete after the timeout of 0:00:00\.3"):
            work.wait()
        set_time_out(timedelta(minutes=5))
        core.barrier()
        work.wait(timedelta(seconds=60))
    else:
        core.barrier()
        if own is not dist.GroupMember.NON_GROUP_MEMBER:
            set_time_out(timedelta(minutes=5))
            dist.all_reduce(torch.ones(2), group=own)
    dist.barrier()
