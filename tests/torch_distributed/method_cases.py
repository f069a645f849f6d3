"""Cases of the methods of a process group and of a work."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from case import Case, Place

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX


def given(kind: str, **fields: Any) -> Any:
    """Returns options of torch.distributed, such as BroadcastOptions, with these fields."""
    options = getattr(dist.distributed_c10d, kind)()
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def world() -> Any:
    return dist.distributed_c10d._get_default_group()


def coalesced(place: Place) -> Any:
    tensors = [place.x(3), place.x(2, 2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    return tensors


def coalesced_movements(place: Place, kind: str) -> Any:
    outputs = [place.blank(3 * place.size), place.blank(2 * place.size)]
    shards = [place.blank(3), place.blank(2)]
    with dist._coalescing_manager():
        for i, length in enumerate((3, 2)):
            if kind == "gather":
                dist.all_gather_into_tensor(outputs[i], place.x(length))
            else:
                dist.reduce_scatter_tensor(shards[i], place.x(length * place.size))
    return outputs if kind == "gather" else shards


# fmt: off
CASES = [
    Case("ProcessGroup.allreduce", "a tensor", lambda p: (t := p.x(3), world().allreduce(t))),
    Case("ProcessGroup.allreduce", "a tensor with an op", lambda p: (t := p.x(3), world().allreduce(t, MAX))),
    Case("ProcessGroup.allreduce", "a list", lambda p: (t := [p.x(3)], world().allreduce(t))),
    Case("ProcessGroup.allreduce", "a list with options", lambda p: (t := [p.x(3)], world().allreduce(t, given("AllreduceOptions", reduceOp=MAX)))),
    Case("ProcessGroup.allreduce_coalesced", "two", lambda p: (t := [p.x(3), p.x(2)], world().allreduce_coalesced(t))),
    Case("ProcessGroup.allreduce_coalesced", "with options", lambda p: (t := [p.x(3), p.x(2)], world().allreduce_coalesced(t, given("AllreduceCoalescedOptions", reduceOp=MAX)))),
    Case("ProcessGroup.reduce", "a tensor to a root", lambda p: (world().reduce(t := p.x(3), 0), t if p.rank == 0 else None)),
    Case("ProcessGroup.reduce", "a list with options", lambda p: (world().reduce(t := [p.x(3)], given("ReduceOptions", rootRank=1)), t if p.rank == 1 else None)),
    Case("ProcessGroup.broadcast", "a tensor from a root", lambda p: (t := p.x(3), world().broadcast(t, 1))),
    Case("ProcessGroup.broadcast", "a list with options", lambda p: (t := [p.x(3)], world().broadcast(t, given("BroadcastOptions", rootRank=1)))),
    Case("ProcessGroup.allgather", "a tensor into a list", lambda p: (o := p.blanks(3), world().allgather(o, p.x(3)))),
    Case("ProcessGroup.allgather", "lists", lambda p: (o := [p.blanks(3)], world().allgather(o, [p.x(3)]))),
    Case("ProcessGroup.all_gather_single", "flat", lambda p: (o := p.blank(3 * p.size), world().all_gather_single(o, p.x(3)))),
    Case("ProcessGroup._allgather_base", "flat", lambda p: (o := p.blank(3 * p.size), world()._allgather_base(o, p.x(3)))),
    Case("ProcessGroup.allgather_coalesced", "two", lambda p: (o := [[p.blank(3), p.blank(2)] for _ in range(p.size)], world().allgather_coalesced(o, [p.x(3), p.x(2)]))),
    Case("ProcessGroup.all_gather_single_coalesced", "two", lambda p: (o := [p.blank(3 * p.size), p.blank(2 * p.size)], world().all_gather_single_coalesced(o, [p.x(3), p.x(2)]))),
    Case("ProcessGroup.allgather_into_tensor_coalesced", "two", lambda p: (o := [p.blank(3 * p.size), p.blank(2 * p.size)], world().allgather_into_tensor_coalesced(o, [p.x(3), p.x(2)]))),
    Case("ProcessGroup.gather", "a tensor to a root", lambda p: (o := p.blanks(3) if p.rank == 0 else [], world().gather(o, p.x(3), 0))),
    Case("ProcessGroup.gather", "lists with options", lambda p: (o := [p.blanks(3)] if p.rank == 1 else [], world().gather(o, [p.x(3)], given("GatherOptions", rootRank=1)))),
    Case("ProcessGroup.scatter", "a list from a root", lambda p: (o := p.blank(3), world().scatter(o, p.xs(3) if p.rank == 0 else [], 0))),
    Case("ProcessGroup.scatter", "lists with options", lambda p: (o := [p.blank(3)], world().scatter(o, [p.xs(3)] if p.rank == 1 else [], given("ScatterOptions", rootRank=1)))),
    Case("ProcessGroup.reduce_scatter", "a list into a tensor", lambda p: (o := p.blank(3), world().reduce_scatter(o, p.xs(3)))),
    Case("ProcessGroup.reduce_scatter", "with an op", lambda p: (o := p.blank(3), world().reduce_scatter(o, p.xs(3), MAX))),
    Case("ProcessGroup.reduce_scatter", "lists with options", lambda p: (o := [p.blank(3)], world().reduce_scatter(o, [p.xs(3)], given("ReduceScatterOptions", reduceOp=MAX)))),
    Case("ProcessGroup.reduce_scatter_single", "flat", lambda p: (o := p.blank(3), world().reduce_scatter_single(o, p.x(3 * p.size), given("ReduceScatterOptions")))),
    Case("ProcessGroup._reduce_scatter_base", "flat", lambda p: (o := p.blank(3), world()._reduce_scatter_base(o, p.x(3 * p.size), given("ReduceScatterOptions")))),
    Case("ProcessGroup.reduce_scatter_single_coalesced", "two", lambda p: (o := [p.blank(3), p.blank(2)], world().reduce_scatter_single_coalesced(o, [p.x(3 * p.size), p.x(2 * p.size)]))),
    Case("ProcessGroup.reduce_scatter_tensor_coalesced", "two", lambda p: (o := [p.blank(3), p.blank(2)], world().reduce_scatter_tensor_coalesced(o, [p.x(3 * p.size), p.x(2 * p.size)]))),
    Case("ProcessGroup.all_to_all_single", "even", lambda p: (o := p.blank(p.size), world().all_to_all_single(o, p.x(p.size), [], []))),
    Case("ProcessGroup.alltoall_base", "even", lambda p: (o := p.blank(p.size), world().alltoall_base(o, p.x(p.size), [], []))),
    Case("ProcessGroup.alltoall", "lists", lambda p: (o := p.blanks(3), world().alltoall(o, p.xs(3)))),
    Case("ProcessGroup.send", "round a ring", lambda p: (o := p.blank(3), [world().send([p.x(3)], p.next, 5), world().recv([o], p.previous, 5)])),
    Case("ProcessGroup.recv", "before it is sent", lambda p: (o := p.blank(3), [world().recv([o], p.previous, 5), world().send([p.x(3)], p.next, 5)])),
    Case("ProcessGroup.recv_anysource", "from the only sender", lambda p: (o := p.blank(3), world().recv_anysource([o], 6)) if p.rank == 0 else world().send([p.x(3)], 0, 6) if p.rank == 1 else None),
    Case("ProcessGroup.barrier", "plain", lambda p: world().barrier()),
    Case("ProcessGroup.barrier", "with options", lambda p: world().barrier(given("BarrierOptions"))),
    Case("ProcessGroup.rank", "in the world", lambda p: world().rank()),
    Case("ProcessGroup.size", "of the world", lambda p: world().size()),
    Case("ProcessGroup.group_name", "of the world", lambda p: world().group_name),
    Case("ProcessGroup.group_desc", "of the world", lambda p: world().group_desc),
    Case("ProcessGroup._device_types", "has the CPU", lambda p: torch.device("cpu") in world()._device_types),
    Case("ProcessGroup._has_hooks", "none", lambda p: world()._has_hooks()),
    Case("ProcessGroup._wait_for_pending_works", "none", lambda p: world()._wait_for_pending_works()),
    Case("ProcessGroup.bound_device_id", "none", lambda p: world().bound_device_id),
    Case("ProcessGroup.get_group_store", "keeps what is set", lambda p: (s := world().get_group_store(), s.set(f"case{p.rank}", "1"), s.get(f"case{p.rank}").decode())[2]),
    Case("ProcessGroup.boxed", "and back", lambda p: dist.ProcessGroup.unbox(world().boxed()).rank()),
    Case("_coalescing_manager", "all_reduce", coalesced),
    Case("_coalescing_manager", "all_gather_into_tensor", lambda p: coalesced_movements(p, "gather")),
    Case("_coalescing_manager", "reduce_scatter_tensor", lambda p: coalesced_movements(p, "scatter")),
    Case("Work.result", "of all_reduce", lambda p: (w := dist.all_reduce(p.x(3), async_op=True), w.wait(), w.result())[2]),
    Case("Work.get_future", "of all_reduce", lambda p: dist.all_reduce(p.x(3), async_op=True).get_future().wait()),
    Case("Work.get_future", "of broadcast", lambda p: dist.broadcast(p.x(3), 0, async_op=True).get_future().wait()),
    Case("Work.get_future", "of all_gather", lambda p: dist.all_gather(p.blanks(3), p.x(3), async_op=True).get_future().wait()),
    Case("Work.get_future", "of all_gather_into_tensor", lambda p: dist.all_gather_into_tensor(p.blank(3 * p.size), p.x(3), async_op=True).get_future().wait()),
    Case("Work.get_future", "of reduce_scatter_tensor", lambda p: dist.reduce_scatter_tensor(p.blank(3), p.x(3 * p.size), async_op=True).get_future().wait()),
    Case("Work.get_future", "of all_to_all_single", lambda p: dist.all_to_all_single(p.blank(p.size), p.x(p.size), async_op=True).get_future().wait()),
    Case("Work.get_future", "then", lambda p: dist.all_reduce(p.x(3), async_op=True).get_future().then(lambda f: f.value()[0] + 1).wait()),
    Case("Work.source_rank", "of a message", lambda p: (w := dist.irecv(p.blank(3), 1), w.wait(), w.source_rank())[2] if p.rank == 0 else dist.send(p.x(3), 0) if p.rank == 1 else None),
    Case("Work.wait", "gives True", lambda p: dist.all_reduce(p.x(3), async_op=True).wait()),
    Case("Work.is_success", "after the wait", lambda p: (w := dist.all_reduce(p.x(3), async_op=True), w.wait(), w.is_success())[1:]),
    Case("Work._source_rank", "of a message", lambda p: (w := dist.irecv(p.blank(3), 1), w.wait(), w._source_rank())[2] if p.rank == 0 else dist.send(p.x(3), 0) if p.rank == 1 else None),
    Case("Work.exception", "none", lambda p: (w := dist.all_reduce(p.x(3), async_op=True), w.wait(), w.exception())[2]),
    Case("Work.synchronize", "of all_reduce", lambda p: (t := p.x(3), w := dist.all_reduce(t, async_op=True), w.wait(), w.synchronize())[::3]),
    Case("Work.boxed", "and back", lambda p: (w := dist.all_reduce(p.x(3), async_op=True), w.wait(), dist.Work.unbox(w.boxed()).is_completed())[2]),
    Case("Work.is_completed", "after the wait", lambda p: (w := dist.all_reduce(p.x(3), async_op=True), w.wait(), w.is_completed())[1:]),
]
# fmt: on
