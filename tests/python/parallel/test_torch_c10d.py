"""The backend "perseus" of torch.distributed."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import perseus.torch.c10d
import perseus.torch.horovod as hvd
from perseus.torch.c10d import PerseusProcessGroup

assert perseus.torch.c10d.NAME == "perseus"


def meet() -> None:
    """init_process_group over a file that rank 0 names."""
    path = hvd.broadcast_object(
        tempfile.mkdtemp() + "/store" if hvd.rank() == 0 else None, name="store"
    )
    dist.init_process_group(
        "perseus", init_method=f"file://{path}", rank=hvd.rank(), world_size=hvd.size()
    )


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    hvd.init()
    meet()
    yield
    dist.destroy_process_group()
    assert hvd.is_initialized()  # by us, so it is ours to shut down


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def values(of_rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a rank sends; small whole numbers, so that sums are exact in every type."""
    generator = torch.Generator().manual_seed(of_rank)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def everybodys(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [values(r, *shape, dtype=dtype) for r in range(size())]


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


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
    dist.all_gather_into_tensor(whole, values(rank(), 3, 2, dtype=dtype))
    same(whole, torch.cat(everybodys(3, 2, dtype=dtype)))


def test_reduce_scatter() -> None:
    whole = torch.stack(everybodys(size(), 3)).sum(0)
    output = torch.zeros(3)
    dist.reduce_scatter_tensor(output, values(rank(), size(), 3))
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


def test_groups_are_made_by_their_members_alone() -> None:
    pairs = [[r, (r + 1) % size()] for r in range(size())] if size() > 1 else [[0]]
    groups = [dist.new_group(sorted(set(pair))) for pair in pairs]
    for pair, group in zip(pairs, groups, strict=True):
        if rank() not in pair:
            continue
        tensor = values(rank(), 10)
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.stack([values(r, 10) for r in sorted(set(pair))]).sum(0))
        tensor = values(rank(), 10)
        dist.broadcast(tensor, max(pair), group=group)  # a rank of the world
        same(tensor, values(max(pair), 10))
        assert isinstance(group, PerseusProcessGroup)
        if hasattr(dist.ProcessGroup, "group_name"):  # which PyTorch 2.1 has not
            assert group.group_name
    for pair, group in zip(pairs, groups, strict=True):
        if rank() in pair:
            dist.destroy_process_group(group)


def test_what_cannot_be_done_says_so() -> None:
    with pytest.raises(ValueError, match="BAND"):
        dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.BAND)
    if size() > 1:
        with pytest.raises(RuntimeError, match="no point-to-point sends"):
            dist.send(torch.ones(2), (rank() + 1) % size())
        with pytest.raises(hvd.HorovodInternalError, match="must submit the same shape"):
            dist.all_reduce(torch.ones(2 + rank()))
        work = dist.all_reduce(torch.ones(2 + rank()), async_op=True)
        with pytest.raises(RuntimeError, match="must submit the same shape"):
            work.get_future().wait()
    dist.barrier()


def network() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    ).double()


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(size() * 4, 6, dtype=torch.float64, generator=generator)


def train(model: torch.nn.Module, data: list[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x in data:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def test_ddp_trains_as_one_process_does() -> None:
    plain = network()
    plain[1] = torch.nn.Identity()  # whose statistics would be those of the own batch
    model = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(plain), bucket_cap_mb=0.0005)
    train(model, [batch(step).chunk(size())[rank()] for step in range(5)])
    train(plain, [batch(step) for step in range(5)])
    for ours, expected in zip(model.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)


def test_ddp_with_a_communication_hook_of_pytorchs() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = torch.nn.parallel.DistributedDataParallel(network().float())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    model(torch.ones(4, 6) * (rank() + 1)).sum().backward()
    grad = next(model.parameters()).grad
    gathered = [torch.zeros_like(grad) for _ in range(size())]
    dist.all_gather(gathered, grad)
    for other in gathered:
        same(other, grad)


def test_ddp_with_our_communication_hook() -> None:
    from perseus.torch.ddp import allreduce_hook

    plain = network()
    plain[1] = torch.nn.Identity()
    model = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(plain), bucket_cap_mb=0.0005)
    model.register_comm_hook(hvd.global_process_set, allreduce_hook)
    train(model, [batch(step).chunk(size())[rank()] for step in range(5)])
    train(plain, [batch(step) for step in range(5)])
    for ours, expected in zip(model.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)


def test_fsdp_trains_as_one_process_does() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no fully_shard")
    from torch.distributed.device_mesh import init_device_mesh

    plain = network()
    plain[1] = torch.nn.Identity()
    model = copy.deepcopy(plain)
    mesh = init_device_mesh("cpu", (size(),))
    for layer in (model[0], model[3], model):
        fsdp.fully_shard(layer, mesh=mesh)
    train(model, [batch(step).chunk(size())[rank()] for step in range(5)])
    train(plain, [batch(step) for step in range(5)])
    for ours, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), expected, rtol=1e-12, atol=1e-14)


def test_torch_distributed_can_be_left_and_joined_again() -> None:
    group = dist.new_group(list(range(size())))
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group()
    meet()
    again = dist.new_group(list(range(size())))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=again)
    assert tensor.item() == size()
