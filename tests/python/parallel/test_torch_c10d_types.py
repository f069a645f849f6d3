"""torch.distributed moves every type that PyTorch has, and says where types differ."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from single_rank_errors import fails_everywhere, faulty_ranks
from torch_groups import all_gather_single, group, rank, size

from perseus.torch.c10d_bytes import bytes_of

__all__ = ["group"]  # which every test uses

SHAPE = (3, 2)


def made(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Returns a tensor of zero bytes."""
    if dtype in (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4):
        tensor = torch._empty_affine_quantized(shape, scale=1.0, zero_point=0, dtype=dtype)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    bytes_of(tensor).zero_()
    return tensor


def can_be_made(dtype: torch.dtype) -> bool:
    try:
        made(dtype, *SHAPE)
    except (RuntimeError, NotImplementedError):
        return False
    return True


EVERY = sorted({t for t in vars(torch).values() if isinstance(t, torch.dtype)}, key=str)
EVERY = [dtype for dtype in EVERY if can_be_made(dtype)]


def of(number: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Returns a tensor whose bytes tell the number."""
    tensor = made(dtype, *shape)
    data = bytes_of(tensor)
    data.copy_(torch.arange(len(data)) % 2 if dtype is torch.bool else torch.arange(len(data)))
    data += 0 if dtype is torch.bool else number
    return tensor


def holds(tensor: torch.Tensor, number: int) -> None:
    expected = of(number, tensor.dtype, *tensor.shape)
    assert torch.equal(bytes_of(tensor), bytes_of(expected)), (tensor.dtype, number)


def test_nearly_all_types_are_tested() -> None:
    assert {torch.bool, torch.float32, torch.complex64, torch.bfloat16} <= set(EVERY)
    for name in ("uint32", "uint64", "float8_e5m2", "float8_e4m3fn", "complex32"):
        assert not hasattr(torch, name) or getattr(torch, name) in EVERY


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_rooted(dtype: torch.dtype) -> None:
    for root in {0, size() - 1}:
        tensor = of(rank(), dtype, *SHAPE)
        work = dist.broadcast(tensor, root, async_op=True)
        work.wait()
        holds(tensor, root)
        parts = [made(dtype, *SHAPE) for _ in range(size())] if rank() == root else None
        dist.gather(of(rank(), dtype, *SHAPE), parts, root)
        for number, part in enumerate(parts or []):
            holds(part, number)
        mine = made(dtype, *SHAPE)
        given = [of(r, dtype, *SHAPE) for r in range(size())] if rank() == root else None
        dist.scatter(mine, given, root)
        holds(mine, rank())


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_all_to_all_ranks(dtype: torch.dtype) -> None:
    parts = [made(dtype, *SHAPE) for _ in range(size())]
    dist.all_gather(parts, of(rank(), dtype, *SHAPE))
    for number, part in enumerate(parts):
        holds(part, number)
    whole = made(dtype, size() * SHAPE[0], SHAPE[1])
    all_gather_single(whole, of(rank(), dtype, *SHAPE))
    pieces = bytes_of(whole).chunk(size())
    for number, piece in enumerate(pieces):
        assert torch.equal(piece, bytes_of(of(number, dtype, *SHAPE)))
    dist.all_to_all(parts, [of(rank() + r, dtype, *SHAPE) for r in range(size())])
    for number, part in enumerate(parts):
        holds(part, number + rank())
    given = made(dtype, size() * SHAPE[0], SHAPE[1])
    for number, piece in enumerate(bytes_of(given).chunk(size())):
        piece.copy_(bytes_of(of(rank() + number, dtype, *SHAPE)))
    dist.all_to_all_single(whole, given)
    for number, piece in enumerate(bytes_of(whole).chunk(size())):
        assert torch.equal(piece, bytes_of(of(number + rank(), dtype, *SHAPE)))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_messages(dtype: torch.dtype) -> None:
    if size() == 1:
        pytest.skip("nobody to send to")
    arriving = made(dtype, *SHAPE)
    works = [
        dist.isend(of(rank(), dtype, *SHAPE), (rank() + 1) % size()),
        dist.irecv(arriving, (rank() - 1) % size()),
    ]
    for work in works:
        work.wait()
    holds(arriving, (rank() - 1) % size())


def test_views_of_every_layout() -> None:
    for dtype in (torch.complex64, torch.complex128, torch.bfloat16):
        rows = torch.arange(6).reshape(2, 3).to(dtype)
        for view in (lambda t: t.t(), lambda t: t[:, ::2], lambda t: t.reshape(-1)[1]):
            tensor = view(rows.clone() + rank())
            dist.broadcast(tensor, size() - 1)
            assert torch.equal(tensor, view(rows + size() - 1))
    conjugated = torch.tensor([1 + 1j, 2 - 3j]) * (rank() + 1)
    tensor = conjugated.conj()
    pg().broadcast(tensor, size() - 1).wait()  # dist.broadcast refuses conjugated ones itself
    assert torch.equal(tensor, torch.tensor([1 - 1j, 2 + 3j]) * size())


def pg() -> dist.ProcessGroup:
    return dist.distributed_c10d._get_default_group()


def root_of(kind: type) -> object:
    options = kind()
    options.rootRank = 0
    return options


def mixed(name: str, given: torch.Tensor, output: torch.Tensor) -> object:
    """Calls a method with an input of size() pairs, and an output, which may be of another type."""
    pairs, own = list(given.split(2)), given[:2].clone()
    outputs = [output[2 * r : 2 * r + 2] for r in range(size())]
    is_root = rank() == 0
    work = {
        "allgather": lambda: pg().allgather([outputs], [own]),
        "allgather base": lambda: pg()._allgather_base(output, own),
        "allgather coalesced": lambda: pg().allgather_coalesced([[out] for out in outputs], [own]),
        "gather": lambda: pg().gather(
            [outputs] if is_root else [], [own], root_of(dist.GatherOptions)
        ),
        "scatter": lambda: pg().scatter(
            [output[:2]], [pairs] if is_root else [], root_of(dist.ScatterOptions)
        ),
        "alltoall": lambda: pg().alltoall(outputs, pairs),
        "alltoall base": lambda: pg().alltoall_base(output, given, [], []),
        "reduce-scatter": lambda: pg().reduce_scatter([output[:2]], [pairs]),
        "reduce-scatter base": lambda: pg()._reduce_scatter_base(
            output[:2], given, dist.ReduceScatterOptions()
        ),
    }[name]()
    return work.wait()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name",
    [
        "allgather",
        "allgather base",
        "allgather coalesced",
        "gather",
        "scatter",
        "alltoall",
        "alltoall base",
        "reduce-scatter",
        "reduce-scatter base",
    ],
)
def test_an_output_of_another_type_is_an_error_on_all_ranks(name: str) -> None:
    given = torch.ones(2 * size())
    for faulty in faulty_ranks():
        if name in ("gather", "scatter") and faulty != 0:
            continue  # the others give no output, or no input
        fails_everywhere(
            [faulty],
            lambda: mixed(name, given, torch.zeros(2 * size(), dtype=torch.float64)),
            lambda: mixed(name, given, torch.zeros(2 * size())),
            RuntimeError,
            "they must have the same type",
        )
    mixed(name, given, torch.zeros(2 * size()))
