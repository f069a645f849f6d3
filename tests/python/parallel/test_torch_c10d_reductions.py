"""The reductions of torch.distributed that Horovod has not: of bits, sparse, and with a factor."""

from __future__ import annotations

import functools
import operator

import pytest
import torch
import torch.distributed as dist
from single_rank_errors import fails_everywhere, faulty_ranks
from torch_groups import group, rank, reduce_scatter_single, same, size

__all__ = ["group"]  # which every test uses

BITS = {
    dist.ReduceOp.BAND: operator.and_,
    dist.ReduceOp.BOR: operator.or_,
    dist.ReduceOp.BXOR: operator.xor,
}
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
INTEGERS += [
    getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)
]


def bits(of_rank: int, dtype: torch.dtype, count: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(of_rank)
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    numbers = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    return numbers.view(torch.uint8).view(dtype)[:count].clone()


def as_signed(tensor: torch.Tensor) -> torch.Tensor:
    """PyTorch itself has hardly any operation on unsigned integers."""
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor if tensor.dtype is torch.bool else tensor.view(signed[tensor.element_size()])


def equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(as_signed(actual), expected)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", list(BITS), ids=str)
def test_bits(op: dist.ReduceOp, dtype: torch.dtype) -> None:
    expected = functools.reduce(BITS[op], (as_signed(bits(r, dtype)) for r in range(size())))
    tensor = bits(rank(), dtype)
    work = dist.all_reduce(tensor, op, async_op=True)
    work.wait()
    equal(tensor, expected)
    tensor = bits(rank(), dtype)
    dist.reduce(tensor, 0, op)
    equal(tensor, expected if rank() == 0 else as_signed(bits(rank(), dtype)))
    whole = functools.reduce(
        BITS[op], (as_signed(bits(r, dtype, 8 * size())) for r in range(size()))
    )
    output = torch.empty(8, dtype=dtype)
    reduce_scatter_single(output, bits(rank(), dtype, 8 * size()), op=op)
    equal(output, whole[8 * rank() : 8 * rank() + 8])
    dist.reduce_scatter(output, list(bits(rank(), dtype, 8 * size()).split(8)), op)
    equal(output, whole[8 * rank() : 8 * rank() + 8])


@pytest.mark.parametrize("op", list(BITS), ids=str)
def test_bits_of_large_tensors(op: dist.ReduceOp) -> None:
    tensor = bits(rank(), torch.int32, 300_001)
    dist.all_reduce(tensor, op)
    same(tensor, functools.reduce(BITS[op], (bits(r, torch.int32, 300_001) for r in range(size()))))


def test_bits_in_a_group_of_some_ranks() -> None:
    ranks = list(range(0, size(), 2))
    some = dist.new_group(ranks)
    if rank() in ranks:
        tensor = torch.tensor([1 << rank()])
        dist.all_reduce(tensor, dist.ReduceOp.BOR, group=some)
        assert tensor.item() == sum(1 << r for r in ranks)
        dist.destroy_process_group(some)


@pytest.mark.parametrize("op", list(BITS), ids=str)
def test_bits_of_floats_are_an_error(op: dist.ReduceOp) -> None:
    for faulty in faulty_ranks():
        fails_everywhere(
            [faulty],
            lambda: dist.all_reduce(torch.ones(2), op),
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op),
            RuntimeError,
            "it takes integers and bool",
        )


@pytest.mark.parametrize("op", ["SUM", "PRODUCT"])
@pytest.mark.parametrize("name", ["uint32", "uint64"])
def test_unsigned_integers(name: str, op: str) -> None:
    if not hasattr(torch, name):
        pytest.skip("this PyTorch has no such type")
    dtype = getattr(torch, name)
    large = 2 ** (32 if name == "uint32" else 63) - 3
    tensor = torch.tensor([large, rank() + 1], dtype=dtype)
    dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
    expected = [large] * size(), list(range(1, size() + 1))
    combine = sum if op == "SUM" else functools.partial(functools.reduce, operator.mul)
    bound = 2 ** (8 * tensor.element_size())
    assert tensor.tolist() == [combine(numbers) % bound for numbers in expected]


@pytest.mark.parametrize("op", ["MIN", "MAX", "PRODUCT"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bfloat16])
def test_reduce_scatter_has_all_reductions(dtype: torch.dtype, op: str) -> None:
    def of(number: int) -> torch.Tensor:
        return torch.arange(3 * size()).add(number).remainder(3).add(1).to(dtype)

    stack = torch.stack([of(r) for r in range(size())])
    reduced = {"MIN": stack.amin, "MAX": stack.amax, "PRODUCT": stack.prod}[op](0).to(dtype)
    output = torch.zeros(3, dtype=dtype)
    reduce_scatter_single(output, of(rank()), op=getattr(dist.ReduceOp, op))
    same(output, reduced[3 * rank() : 3 * rank() + 3])


def premul(factor: float | torch.Tensor) -> dist.ReduceOp:
    return dist._make_nccl_premul_sum(factor)


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_premul_sum(dtype: torch.dtype, as_tensor: bool) -> None:
    def op() -> dist.ReduceOp:
        return premul(torch.tensor([0.5], dtype=dtype) if as_tensor else 0.5)

    total = 0.5 * sum(range(1, size() + 1))
    tensor = torch.full((5,), rank() + 1.0, dtype=dtype)
    dist.all_reduce(tensor, op())
    same(tensor, torch.full((5,), total, dtype=dtype))
    given = torch.full((2 * size(),), rank() + 1.0, dtype=dtype)
    output = torch.empty(2, dtype=dtype)
    reduce_scatter_single(output, given, op=op())
    same(output, torch.full((2,), total, dtype=dtype))
    same(given, torch.full((2 * size(),), rank() + 1.0, dtype=dtype))  # is only read
    tensor = torch.full((5,), rank() + 1.0, dtype=dtype)
    dist.reduce(tensor, 0, op())
    same(tensor, torch.full((5,), total if rank() == 0 else rank() + 1.0, dtype=dtype))


def test_premul_sum_of_complex_numbers_and_integers() -> None:
    tensor = torch.full((3,), 1 + 2j)
    dist.all_reduce(tensor, premul(0.5))
    same(tensor, torch.full((3,), (0.5 + 1j) * size()))
    numbers = torch.tensor([3, 10])
    dist.all_reduce(numbers, premul(torch.tensor(2)))
    assert numbers.tolist() == [6 * size(), 20 * size()]


def test_each_rank_has_a_factor_of_its_own_in_a_tensor() -> None:
    tensor = torch.ones(2)
    dist.all_reduce(tensor, premul(torch.tensor(rank() + 1.0)))
    assert tensor.tolist() == [sum(range(1, size() + 1))] * 2


def test_fsdp_divides_by_a_factor() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this PyTorch has no fully_shard")
    model = torch.nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    fsdp.fully_shard(model)
    setter = getattr(model, "set_gradient_divide_factor", None)
    setter = setter or model.set_reduce_scatter_divide_factor
    setter(2.0)
    model(torch.full((1, 4), rank() + 1.0)).sum().backward()
    gradient = model.weight.grad.full_tensor()
    same(gradient, torch.full((2, 4), sum(range(1, size() + 1)) / 2))


# ---- Sparse tensors.


def sparse(of_rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Every rank has other indices, one of them twice, and rank 1 has none."""
    count = 0 if of_rank == 1 else of_rank + 2
    rows = torch.arange(count) % 7
    rows[1:2] = 0
    values = torch.arange(3 * count).reshape(count, 3).to(dtype)
    return torch.sparse_coo_tensor(rows[None], values, (7, 3))


def total(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([sparse(r, dtype).to_dense() for r in range(size())]).sum(0).to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64]
)
def test_sparse_tensors(dtype: torch.dtype) -> None:
    tensor = sparse(rank(), dtype)
    # For complex sparse tensors, dist.all_reduce itself passes a copy.
    work = dist.distributed_c10d._get_default_group().allreduce([tensor])
    work.wait()
    assert tensor.is_coalesced()
    same(tensor.to_dense(), total(dtype))
    (result,) = work.result()
    same(result.to_dense(), total(dtype))
    if dtype is torch.float32:
        tensor = sparse(rank())
        dist.all_reduce(tensor, async_op=True).wait()
        same(tensor.to_dense(), total())
        tensor = sparse(rank())
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        torch.testing.assert_close(tensor.to_dense(), total() / size())


def test_sparse_tensors_with_several_sparse_dimensions_and_in_a_group_of_some_ranks() -> None:
    ranks = list(range(0, size(), 2))
    some = dist.new_group(ranks)
    if rank() in ranks:
        tensor = torch.sparse_coo_tensor([[0, rank()], [1, 0]], [1.0, 2.0], (4, 2))
        dist.all_reduce(tensor, group=some)
        expected = torch.zeros(4, 2)
        expected[0, 1] = len(ranks)
        for r in ranks:
            expected[r, 0] += 2.0
        same(tensor.to_dense(), expected)
        dist.destroy_process_group(some)


def test_sparse_tensors_that_cannot_be_reduced() -> None:
    for op in (dist.ReduceOp.MAX, premul(2.0)):
        with pytest.raises(RuntimeError, match="SUM or AVG"):
            dist.all_reduce(sparse(rank()), op)
    with pytest.raises(NotImplementedError, match="sparse_coo"):
        dist.all_reduce(torch.ones(2, 2).to_sparse_csr())
    if size() > 1:
        wrong = torch.sparse_coo_tensor([[0]], [1.0], (5 + rank(),))
        with pytest.raises(RuntimeError, match="different shapes"):
            dist.all_reduce(wrong)
    dist.barrier()


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_ddp_with_sparse_gradients(kind: type[torch.nn.Module]) -> None:
    model = kind(6, 2, sparse=True)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    reference = kind(6, 2)
    reference.load_state_dict(model.state_dict())
    for step in range(2):
        parallel.zero_grad()
        parallel(torch.tensor([[rank() % 6, step, 5]])).sum().backward()
        reference.zero_grad()
        for r in range(size()):
            (reference(torch.tensor([[r % 6, step, 5]])).sum() / size()).backward()
        torch.testing.assert_close(model.weight.grad.to_dense(), reference.weight.grad)
