"""Cases of collectives: functions of torch.distributed that all members of a group call."""

from __future__ import annotations

import torch
import torch.distributed as dist
from case import Body, Case

SUM, AVG, MIN, MAX, PRODUCT = (
    getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT")
)
BITS = tuple(getattr(dist.ReduceOp, name) for name in ("BAND", "BOR", "BXOR"))
#: Of reductions, and of those that only move bytes.
NUMBERS = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
OTHERS = ("bool", "int16", "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn")


def collective(covers: str, what: str, body: Body) -> Case:
    return Case(covers, what, body, collective=True)


def dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


# fmt: off
REDUCTIONS = [
    *(collective("all_reduce", f"SUM of {d}", lambda p, d=d, **how: (t := p.x(5, dtype=dtype(d)), dist.all_reduce(t, **how))) for d in NUMBERS + OTHERS if hasattr(torch, d)),
    *(collective("all_reduce", f"{op} of float32", lambda p, op=op, **how: (t := p.x(3, 4), dist.all_reduce(t, op, **how))) for op in (MIN, MAX, PRODUCT)),
    *(collective("all_reduce", f"{op} of int32", lambda p, op=op, **how: (t := p.x(3, 4, dtype=torch.int32), dist.all_reduce(t, op, **how))) for op in (MIN, MAX, PRODUCT, *BITS)),
    *(collective("all_reduce", f"{op} of bool", lambda p, op=op, **how: (t := p.x(6) > 1, dist.all_reduce(t, op, **how))) for op in (MIN, MAX)),
    collective("all_reduce", "AVG", lambda p, **how: (t := p.x(3), dist.all_reduce(t, AVG, **how))),
    collective("all_reduce", "a scalar", lambda p, **how: (t := p.x(), dist.all_reduce(t, **how))),
    collective("all_reduce", "nothing", lambda p, **how: (t := p.x(0), dist.all_reduce(t, **how))),
    collective("all_reduce", "a transposed matrix", lambda p, **how: (t := p.x(3, 4).t(), dist.all_reduce(t, **how))),
    collective("all_reduce", "every second column", lambda p, **how: (t := p.x(4, 6)[:, ::2], dist.all_reduce(t, **how))),
    collective("all_reduce", "channels last", lambda p, **how: (t := p.x(2, 3, 4, 5).to(memory_format=torch.channels_last), dist.all_reduce(t, **how))),
    collective("all_reduce", "a parameter", lambda p, **how: (t := torch.nn.Parameter(p.x(3)), dist.all_reduce(t.data, **how))),
    collective("all_reduce", "1 MiB", lambda p, **how: (t := p.x(1 << 18), dist.all_reduce(t, **how), t[:3])),
    collective("all_reduce", "complex MAX", lambda p, **how: dist.all_reduce(p.x(3, dtype=torch.complex64), MAX, **how)),
    collective("all_reduce", "what is no tensor", lambda p, **how: dist.all_reduce([1, 2], **how)),
    collective("all_reduce", "a sparse tensor", lambda p, **how: (t := p.x(4, 3).to_sparse(), dist.all_reduce(t, **how))),
    collective("all_reduce", "a number for an op", lambda p, **how: dist.all_reduce(p.x(3), 99, **how)),
    collective("all_reduce_coalesced", "two", lambda p, **how: (t := [p.x(3), p.x(2, 2)], dist.all_reduce_coalesced(t, **how))),
    collective("all_reduce_coalesced", "MAX", lambda p, **how: (t := [p.x(3), p.x(2, 2)], dist.all_reduce_coalesced(t, MAX, **how))),
    collective("all_reduce_coalesced", "of two types", lambda p, **how: (t := [p.x(3), p.x(3, dtype=torch.int64)], dist.all_reduce_coalesced(t, **how))),
    collective("all_reduce_coalesced", "none", lambda p, **how: dist.all_reduce_coalesced([], **how)),
    collective("reduce", "SUM", lambda p, **how: (dist.reduce(t := p.x(3, 4), p.root, **how), t if p.is_root else None)),
    collective("reduce", "MAX of int64", lambda p, **how: (dist.reduce(t := p.x(3, dtype=torch.int64), p.root, MAX, **how), t if p.is_root else None)),
    collective("reduce", "by its rank in the group", lambda p, **how: (dist.reduce(t := p.x(3), group_dst=0, **how), t if p.place == 0 else None)),
    collective("reduce_scatter", "a list", lambda p, **how: (t := p.blank(3), dist.reduce_scatter(t, p.xs(3), **how))),
    collective("reduce_scatter", "MAX", lambda p, **how: (t := p.blank(3), dist.reduce_scatter(t, p.xs(3), MAX, **how))),
    collective("reduce_scatter", "uneven parts", lambda p, **how: (t := p.blank(p.place + 1), dist.reduce_scatter(t, [p.x(i + 1) for i in range(p.size)], **how))),
    collective("reduce_scatter_single", "rows", lambda p, **how: (t := p.blank(2, 3), dist.reduce_scatter_single(t, p.x(2 * p.size, 3), **how))),
    collective("reduce_scatter_single", "stacked", lambda p, **how: (t := p.blank(3), dist.reduce_scatter_single(t, p.x(p.size, 3), **how))),
    collective("reduce_scatter_tensor", "rows", lambda p, **how: (t := p.blank(2, 3), dist.reduce_scatter_tensor(t, p.x(2 * p.size, 3), **how))),
    collective("reduce_scatter_tensor", "MAX of int32", lambda p, **how: (t := p.blank(2, dtype=torch.int32), dist.reduce_scatter_tensor(t, p.x(2 * p.size, dtype=torch.int32), MAX, **how))),
    collective("reduce_scatter_tensor", "an input of the wrong size", lambda p, **how: dist.reduce_scatter_tensor(p.blank(2), p.x(2 * p.size + 1), **how)),
    collective("reduce_scatter_tensor", "into another type", lambda p, **how: dist.reduce_scatter_tensor(p.blank(2, dtype=torch.int32), p.x(2 * p.size), **how)),
]

MOVEMENTS = [
    *(collective("broadcast", d, lambda p, d=d, **how: (t := p.x(5, dtype=dtype(d)), dist.broadcast(t, p.root, **how))) for d in NUMBERS + OTHERS if hasattr(torch, d)),
    collective("broadcast", "by its rank in the group", lambda p, **how: (t := p.x(3), dist.broadcast(t, group_src=0, **how))),
    collective("broadcast", "a transposed matrix", lambda p, **how: (t := p.x(3, 4).t(), dist.broadcast(t, p.root, **how))),
    collective("broadcast", "nothing", lambda p, **how: (t := p.x(0), dist.broadcast(t, p.root, **how))),
    collective("broadcast", "from no rank", lambda p, **how: dist.broadcast(p.x(3), 99, **how)),
    collective("broadcast", "from two ranks at once", lambda p, **how: dist.broadcast(p.x(3), p.root, group_src=0, **how)),
    *(collective("all_gather", d, lambda p, d=d, **how: (o := p.blanks(3, dtype=dtype(d)), dist.all_gather(o, p.x(3, dtype=dtype(d)), **how))) for d in NUMBERS + OTHERS if hasattr(torch, d)),
    collective("all_gather", "matrices", lambda p, **how: (o := p.blanks(2, 3), dist.all_gather(o, p.x(2, 3), **how))),
    collective("all_gather", "a transposed input", lambda p, **how: (o := p.blanks(3, 2), dist.all_gather(o, p.x(2, 3).t(), **how))),
    collective("all_gather", "transposed outputs", lambda p, **how: (o := [t.t() for t in p.blanks(3, 2)], dist.all_gather(o, p.x(2, 3), **how))),
    collective("all_gather", "uneven parts", lambda p, **how: (o := [p.blank(i + 1) for i in range(p.size)], dist.all_gather(o, p.x(p.place + 1), **how))),
    collective("all_gather", "into another type", lambda p, **how: dist.all_gather(p.blanks(3, dtype=torch.float64), p.x(3), **how)),
    collective("all_gather", "too few outputs", lambda p, **how: dist.all_gather(p.blanks(3)[1:], p.x(3), **how)),
    collective("all_gather", "outputs of another shape", lambda p, **how: dist.all_gather(p.blanks(2), p.x(3), **how)),
    collective("all_gather_single", "side by side", lambda p, **how: (o := p.blank(2 * p.size, 3), dist.all_gather_single(o, p.x(2, 3), **how))),
    collective("all_gather_single", "stacked", lambda p, **how: (o := p.blank(p.size, 2, 3), dist.all_gather_single(o, p.x(2, 3), **how))),
    collective("all_gather_into_tensor", "side by side", lambda p, **how: (o := p.blank(2 * p.size, 3), dist.all_gather_into_tensor(o, p.x(2, 3), **how))),
    collective("all_gather_into_tensor", "an output of the wrong size", lambda p, **how: dist.all_gather_into_tensor(p.blank(2 * p.size + 1), p.x(2), **how)),
    collective("all_gather_into_tensor", "into another type", lambda p, **how: dist.all_gather_into_tensor(p.blank(2 * p.size, dtype=torch.float64), p.x(2), **how)),
    collective("all_gather_coalesced", "two", lambda p, **how: (o := [[p.blank(3), p.blank(2, 2)] for _ in range(p.size)], dist.all_gather_coalesced(o, [p.x(3), p.x(2, 2)], **how))),
    collective("gather", "a list", lambda p, **how: (o := p.blanks(3) if p.is_root else None, dist.gather(p.x(3), o, p.root, **how))),
    collective("gather", "by its rank in the group", lambda p, **how: (o := p.blanks(3) if p.place == 0 else None, dist.gather(p.x(3), o, group_dst=0, **how))),
    *(collective(name, "one tensor", lambda p, name=name, **how: (o := torch.zeros(p.size, 3) if p.is_root else None, getattr(dist, name)(p.x(3), o, p.root, **how))) for name in ("gather_single", "gather_into_tensor") if hasattr(dist, name)),
    *(collective(name, "of another size", lambda p, name=name, **how: getattr(dist, name)(p.x(3), torch.zeros(2) if p.is_root else None, p.root, **how)) for name in ("gather_single",) if hasattr(dist, name)),
    collective("gather", "a list on all ranks", lambda p, **how: dist.gather(p.x(3), p.blanks(3), p.root, **how) if not p.is_root else None),
    collective("scatter", "a list", lambda p, **how: (o := p.blank(3), dist.scatter(o, p.xs(3) if p.is_root else None, p.root, **how))),
    collective("scatter", "by its rank in the group", lambda p, **how: (o := p.blank(3), dist.scatter(o, p.xs(3) if p.place == 0 else None, group_src=0, **how))),
    collective("scatter", "a list on all ranks", lambda p, **how: dist.scatter(p.blank(3), p.xs(3), p.root, **how) if not p.is_root else None),
    collective("all_to_all", "lists", lambda p, **how: (o := p.blanks(3), dist.all_to_all(o, p.xs(3), **how))),
    collective("all_to_all", "uneven parts", lambda p, **how: (o := [p.blank(p.place + 1) for _ in range(p.size)], dist.all_to_all(o, [p.x(i + 1) for i in range(p.size)], **how))),
    collective("all_to_all_single", "even", lambda p, **how: (o := p.blank(2 * p.size, 3), dist.all_to_all_single(o, p.x(2 * p.size, 3), **how))),
    collective("all_to_all_single", "complex64", lambda p, **how: (o := p.blank(2 * p.size, dtype=torch.complex64), dist.all_to_all_single(o, p.x(2 * p.size, dtype=torch.complex64), **how))),
    collective("all_to_all_single", "uneven splits", lambda p, **how: (o := p.blank((p.place + 1) * p.size, 2), dist.all_to_all_single(o, p.x(p.size * (p.size + 1) // 2, 2), [p.place + 1] * p.size, [i + 1 for i in range(p.size)], **how))),
    collective("all_to_all_single", "splits that do not fit", lambda p, **how: dist.all_to_all_single(p.blank(p.size), p.x(p.size), [2] * p.size, [2] * p.size, **how)),
    collective("barrier", "of a group", lambda p, **how: dist.barrier(**how)),
    collective("all_gather_object", "different ones", lambda p, group=None, **_: (o := [None] * p.size, dist.all_gather_object(o, {"rank": p.rank}, group=group))),
    collective("gather_object", "to one", lambda p, group=None, **_: (o := [None] * p.size if p.is_root else None, dist.gather_object(["of", p.rank], o, p.root, group=group))),
    collective("gather_object", "by its rank in the group", lambda p, group=None, **_: (o := [None] * p.size if p.place == 0 else None, dist.gather_object(p.rank, o, group=group, group_dst=0))),
    collective("broadcast_object_list", "two", lambda p, group=None, **_: (o := [p.rank, "x"] if p.is_root else [None, None], dist.broadcast_object_list(o, p.root, group=group))),
    collective("broadcast_object_list", "on a device", lambda p, group=None, **_: (o := [p.rank], dist.broadcast_object_list(o, p.root, group=group, device=torch.device("cpu")))),
    collective("scatter_object_list", "one each", lambda p, group=None, **_: (o := [None], dist.scatter_object_list(o, [f"to {i}" for i in range(p.size)] if p.is_root else None, p.root, group=group))),
]
# fmt: on

CASES = REDUCTIONS + MOVEMENTS
