"""Shared by tests of torch.distributed."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import perseus.torch
import perseus.torch.horovod as hvd

assert perseus.torch.__name__ == "perseus.torch"  # which registers the backend


def newest_name(*names: str) -> Callable[..., Any]:
    """The function of torch.distributed that is not deprecated, where there are several."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


all_gather_single = newest_name("all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = newest_name("reduce_scatter_single", "reduce_scatter_tensor")


#: The files over which meet() made groups.
stores: list[Path] = []


def meet() -> None:
    """init_process_group over a file that rank 0 names."""
    path = hvd.broadcast_object(
        f"{tempfile.gettempdir()}/perseus-store-{uuid.uuid4()}" if hvd.rank() == 0 else None,
        name="store",
    )
    stores.append(Path(path))
    dist.init_process_group(
        "perseus", init_method=f"file://{path}", rank=hvd.rank(), world_size=hvd.size()
    )


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    hvd.init()
    meet()
    yield
    dist.destroy_process_group()
    # PyTorch removes a store's file only if each rank destroys its store before it ends.
    hvd.barrier()
    while stores:
        stores.pop().unlink(missing_ok=True)
    assert hvd.is_initialized()  # by us, so it is ours to shut down


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def values(of_rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a rank's values: small whole numbers, so that sums are exact in every type."""
    generator = torch.Generator().manual_seed(of_rank)
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


def everybodys(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [values(r, *shape, dtype=dtype) for r in range(size())]


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
