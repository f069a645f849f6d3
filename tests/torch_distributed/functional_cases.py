"""Cases of functional collectives, of those with gradients, of device meshes and compiled ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as nnf
from case import Case, Place


def world() -> Any:
    return dist.distributed_c10d._get_default_group()


def mesh(place: Place) -> Any:
    """Returns a mesh of two rows if that is possible, otherwise of one."""
    rows = 2 if place.size % 2 == 0 else 1
    return dist.device_mesh.init_device_mesh(
        "cpu", (rows, place.size // rows), mesh_dim_names=("a", "b")
    )


def gradient(place: Place, function: Callable[[torch.Tensor], Any], *shape: int) -> Any:
    """Returns a function's value, and its gradient with respect to its input."""
    source = place.x(*shape).requires_grad_()
    value = function(source)
    parts = value if isinstance(value, (list, tuple)) else [value]
    # Each rank weighs what it has by another number, so that ranks cannot be mixed up unnoticed.
    sum((place.rank + 1) * part.pow(2).sum() for part in parts).backward()
    return value, source.grad


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")(*arguments)


def distributed(place: Place, *placements: str) -> Any:
    """Moves a matrix from one placement to the next, over the whole world."""
    import torch.distributed.tensor as tensor

    kinds = {"R": tensor.Replicate(), "0": tensor.Shard(0), "1": tensor.Shard(1)}
    whole = dist.device_mesh.init_device_mesh("cpu", (place.size,))
    found = tensor.distribute_tensor(torch.arange(20.0).view(5, 4), whole, [kinds[placements[0]]])
    for placement in placements[1:]:
        found = found.redistribute(whole, [kinds[placement]])
    return found


def product(place: Place) -> Any:
    """Multiplies matrices that are distributed by columns and by rows."""
    import torch.distributed.tensor as tensor

    whole = dist.device_mesh.init_device_mesh("cpu", (place.size,))
    left = tensor.distribute_tensor(torch.arange(24.0).view(4, 6), whole, [tensor.Shard(1)])
    right = tensor.distribute_tensor(torch.arange(12.0).view(6, 2), whole, [tensor.Shard(0)])
    return (left @ right).full_tensor()


# fmt: off
CASES = [
    Case("functional.all_reduce", "sum", lambda p: funcol.all_reduce(p.x(3), "sum", world()) + 0),
    Case("functional.all_reduce", "max in a mesh", lambda p: funcol.all_reduce(p.x(3), "max", (mesh(p), 1)) + 0),
    Case("functional.all_reduce", "avg", lambda p: funcol.all_reduce(p.x(3), "avg", world()) + 0),
    Case("functional.all_reduce", "of some ranks", lambda p: funcol.all_reduce(p.x(3), "sum", list(p.members)) + 0),
    Case("functional.broadcast", "from the last", lambda p: funcol.broadcast(p.x(3), p.root, world()) + 0),
    Case("functional.all_gather_single", "rows", lambda p: funcol.all_gather_single(p.x(2, 3), 0, world()) + 0),
    Case("functional.all_gather_tensor", "columns", lambda p: funcol.all_gather_tensor(p.x(2, 3), 1, world()) + 0),
    Case("functional.reduce_scatter_single", "rows", lambda p: funcol.reduce_scatter_single(p.x(2 * p.size, 3), "sum", 0, world()) + 0),
    Case("functional.reduce_scatter_tensor", "columns", lambda p: funcol.reduce_scatter_tensor(p.x(3, 2 * p.size), "sum", 1, world()) + 0),
    Case("functional.all_to_all_single", "even", lambda p: funcol.all_to_all_single(p.x(2 * p.size), None, None, world()) + 0),
    Case("functional.all_to_all_single", "uneven", lambda p: funcol.all_to_all_single(p.x(p.size * (p.size + 1) // 2), [p.place + 1] * p.size, [i + 1 for i in range(p.size)], world()) + 0),
    Case("functional.permute_tensor", "round a ring", lambda p: funcol.permute_tensor(p.x(3), [(i + 1) % p.size for i in range(p.size)], world()) + 0),
    Case("functional.all_reduce_coalesced", "two", lambda p: [t + 0 for t in funcol.all_reduce_coalesced([p.x(3), p.x(2)], "sum", world())]),
    Case("functional.all_gather_single_coalesced", "two", lambda p: [t + 0 for t in funcol.all_gather_single_coalesced([p.x(3), p.x(2)], world())]),
    Case("functional.all_gather_into_tensor_coalesced", "two", lambda p: [t + 0 for t in funcol.all_gather_into_tensor_coalesced([p.x(3), p.x(2)], world())]),
    Case("functional.reduce_scatter_single_coalesced", "two", lambda p: [t + 0 for t in funcol.reduce_scatter_single_coalesced([p.x(3 * p.size), p.x(2 * p.size)], "sum", [0, 0], world())]),
    Case("functional.reduce_scatter_tensor_coalesced", "two", lambda p: [t + 0 for t in funcol.reduce_scatter_tensor_coalesced([p.x(3 * p.size), p.x(2 * p.size)], "sum", [0, 0], world())]),
    Case("functional.wait_tensor", "of all_reduce", lambda p: funcol.wait_tensor(funcol.all_reduce(p.x(3), "sum", world()))),
    Case("functional.all_gather_single_autograd", "rows", lambda p: gradient(p, lambda t: funcol.all_gather_single_autograd(t, 0, world()) + 0, 2, 3)),
    Case("functional.all_gather_tensor_autograd", "rows", lambda p: gradient(p, lambda t: funcol.all_gather_tensor_autograd(t, 0, world()) + 0, 2, 3)),
    Case("functional.reduce_scatter_single_autograd", "rows", lambda p: gradient(p, lambda t: funcol.reduce_scatter_single_autograd(t, "sum", 0, world()) + 0, 2 * p.size)),
    Case("functional.reduce_scatter_tensor_autograd", "rows", lambda p: gradient(p, lambda t: funcol.reduce_scatter_tensor_autograd(t, "sum", 0, world()) + 0, 2 * p.size)),
    Case("functional.all_to_all_single_autograd", "even", lambda p: gradient(p, lambda t: funcol.all_to_all_single_autograd(t, [2] * p.size, [2] * p.size, world()) + 0, 2 * p.size)),
    Case("nn.functional.broadcast", "from the last", lambda p: gradient(p, lambda t: nnf.broadcast(t, p.root), 3)),
    Case("nn.functional.gather", "to the first", lambda p: gradient(p, lambda t: nnf.gather(t, 0), 3)),
    Case("nn.functional.scatter", "from the first", lambda p: gradient(p, lambda t: nnf.scatter([t + i for i in range(p.size)], 0), 3)),
    Case("nn.functional.reduce", "to the first", lambda p: gradient(p, lambda t: nnf.reduce(t, 0), 3) if p.rank == 0 else gradient(p, lambda t: nnf.reduce(t, 0) * 0, 3)[1]),
    Case("nn.functional.reduce_scatter", "a list", lambda p: gradient(p, lambda t: nnf.reduce_scatter(p.blank(3), [t + i for i in range(p.size)]), 3)),
    Case("nn.functional.all_gather", "rows", lambda p: gradient(p, lambda t: nnf.all_gather(t), 3)),
    Case("nn.functional._all_gather_base", "rows", lambda p: gradient(p, lambda t: nnf._all_gather_base(p.blank(3 * p.size), t), 3)),
    Case("nn.functional.all_to_all", "lists", lambda p: gradient(p, lambda t: nnf.all_to_all(p.blanks(3), [t + i for i in range(p.size)]), 3)),
    Case("nn.functional.all_to_all_single", "even", lambda p: gradient(p, lambda t: nnf.all_to_all_single(p.blank(p.size), t), p.size)),
    Case("nn.functional.all_reduce", "sum", lambda p: gradient(p, lambda t: nnf.all_reduce(t), 3)),
    Case("compiled", "all_reduce", lambda p: compiled(lambda t: funcol.all_reduce(t, "sum", world()) * 2, p.x(3))),
    Case("compiled", "all_gather_tensor", lambda p: compiled(lambda t: funcol.all_gather_tensor(t, 0, world()) * 2, p.x(3))),
    Case("compiled", "reduce_scatter_tensor", lambda p: compiled(lambda t: funcol.reduce_scatter_tensor(t, "sum", 0, world()) * 2, p.x(3 * p.size))),
    Case("compiled", "all_to_all_single", lambda p: compiled(lambda t: funcol.all_to_all_single(t, None, None, world()) * 2, p.x(p.size))),
    Case("compiled", "broadcast", lambda p: compiled(lambda t: funcol.broadcast(t, 0, world()) * 2, p.x(3))),
    Case("init_device_mesh", "its shape", lambda p: (m := mesh(p), m.shape, m.get_coordinate(), m.get_local_rank("a"))[1:]),
    Case("DeviceMesh.get_group", "of each dimension", lambda p: [(t := p.x(3), dist.all_reduce(t, group=mesh(p).get_group(name))) for name in ("a", "b")]),
    Case("DeviceMesh.get_all_groups", "two", lambda p: len(mesh(p).get_all_groups())),
    Case("DeviceMesh.from_group", "the world", lambda p: dist.device_mesh.DeviceMesh.from_group(world(), "cpu").shape),
    Case("DeviceMesh._flatten", "of two dimensions", lambda p: (m := mesh(p)._flatten("all"), t := p.x(3), dist.all_reduce(t, group=m.get_group()))[1:]),
    Case("DTensor", "from rows to columns", lambda p: distributed(p, "0", "1")),
    Case("DTensor", "from columns to a copy each", lambda p: distributed(p, "1", "R")),
    Case("DTensor", "from a copy each to rows", lambda p: distributed(p, "R", "0")),
    Case("DTensor", "a product", product),
]
# fmt: on
