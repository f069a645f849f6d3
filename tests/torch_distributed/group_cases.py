"""Cases of groups: how they are made, what they say of themselves, and time-outs in them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from case import Case


def in_a_group_of_its_own(place: Any, body: Any, **options: Any) -> Any:
    """Calls body(group) in a new group of all ranks, as the call may spoil it."""
    return body(dist.new_group(**options))


def alone(place: Any, body: Any) -> Any:
    """Has the first rank do what waits for the others, which do nothing, for a second at most."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    return body(group) if place.place == 0 else None


# fmt: off
CASES = [
    Case("new_group", "of some ranks, in any order", lambda p: (g := dist.new_group(list(reversed(p.members[-2:]))), dist.get_rank(g), dist.get_world_size(g))),
    Case("new_group", "of one rank", lambda p: (g := dist.new_group([p.root]), t := p.x(3), dist.all_reduce(t, group=g) if p.is_root else None)),
    Case("new_group", "of ranks that are not there", lambda p: dist.new_group([0, 99])),
    Case("new_group", "with a description", lambda p: dist.new_group(group_desc="of a test").group_desc),
    Case("new_subgroups", "of one rank each", lambda p: dist.new_subgroups(1)),
    Case("new_subgroups", "of no size that fits", lambda p: dist.new_subgroups(p.size + 1)),
    Case("new_subgroups_by_enumeration", "of one rank each", lambda p: dist.new_subgroups_by_enumeration([[i] for i in p.members])),
    Case("split_group", "in one part", lambda p: dist.split_group(split_ranks=[list(p.members)])),
    Case("shrink_group", "without the last", lambda p: in_a_group_of_its_own(p, lambda g: dist.shrink_group([p.root], g))),
    Case("get_rank", "in the world", lambda p: dist.get_rank()),
    Case("get_world_size", "of the world", lambda p: dist.get_world_size()),
    Case("get_group_rank", "of each", lambda p: [dist.get_group_rank(dist.group.WORLD, i) for i in p.members]),
    Case("get_global_rank", "of each", lambda p: [dist.get_global_rank(dist.group.WORLD, i) for i in range(p.size)]),
    Case("get_process_group_ranks", "of the world", lambda p: dist.get_process_group_ranks(dist.group.WORLD)),
    Case("get_node_local_rank", "as the launcher says", lambda p: dist.get_node_local_rank()),
    Case("is_initialized", "in a group", lambda p: dist.is_initialized()),
    Case("is_torchelastic_launched", "without it", lambda p: dist.is_torchelastic_launched()),
    Case("init_process_group", "twice", lambda p: dist.init_process_group(dist.get_backend())),
    Case("destroy_process_group", "of no group", lambda p: dist.destroy_process_group("group")),
    Case("breakpoint", "left out", lambda p: dist.breakpoint(skip=1)),
]

TIME_OUTS = [
    Case("all_reduce", "that nobody joins", lambda p: alone(p, lambda g: dist.all_reduce(p.x(3), group=g))),
    Case("barrier", "that nobody joins", lambda p: alone(p, lambda g: dist.barrier(g))),
    Case("broadcast", "that nobody sends", lambda p: alone(p, lambda g: dist.broadcast(p.x(3), p.root, group=g))),
    Case("all_gather", "that nobody joins", lambda p: alone(p, lambda g: dist.all_gather(p.blanks(3), p.x(3), group=g))),
    Case("irecv", "that nobody sends", lambda p: alone(p, lambda g: dist.irecv(p.blank(3), p.root, group=g).wait())),
    Case("irecv", "with a limit of the wait", lambda p: alone(p, lambda g: dist.irecv(p.blank(3), p.root, group=g).wait(timedelta(milliseconds=100)))),
    Case("all_reduce", "with a limit of the wait", lambda p: alone(p, lambda g: dist.all_reduce(p.x(3), group=g, async_op=True).wait(timedelta(milliseconds=100)))),
]
# fmt: on
