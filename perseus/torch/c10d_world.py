"""The engine under the groups of torch.distributed: which ranks are its world, and when it ends.

The default group of this backend has the engine's world. If the default group has another backend,
the first group of this one makes the world of its members, as nobody else takes part in making it.
Later groups must be within that world. It ends with the last of them.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import perseus_core
from perseus.common.threads import share_processors
from perseus.torch import c10d_sets, numbered_ranks
from perseus.torch.c10d_work import callback_threads
from perseus.torch.store_meeting import World

__all__ = ["join", "leave", "ranks_in_world"]

# The ranks of torch.distributed that are the engine's world, if a group of some backend's world has
# started it, and how many groups there are in it.
_members: list[int] = []
_groups = 0


def join(options: Any) -> bool:
    """Joins the engine's world for the default group; returns whether this has started it."""
    starts = not perseus_core.is_initialized()
    _start(options)
    return starts


def ranks_in_world(options: Any) -> list[int]:
    """Joins the engine's world for another group; returns the ranks of its members there."""
    global _members, _groups
    ranks = list(options.global_ranks_in_group)
    if not perseus_core.is_initialized():
        _members, _groups = ranks, 0
        _start(options)
    elif not _is_of_members():
        _members = []
        _require(dist.get_rank(), dist.get_world_size())
        return ranks
    if outside := [rank for rank in ranks if rank not in _members]:
        raise ValueError(
            f"the group of ranks {ranks} has ranks that are not in the world of Perseus: {outside}."
            f" Its first group made that world, of ranks {_members}; let the first one be of all "
            'ranks, by new_group(backend="perseus")'
        )
    _groups += 1
    return [_members.index(rank) for rank in ranks]


def leave() -> None:
    """A group that is not the default group has ended."""
    global _groups
    if _is_of_members():
        _groups -= 1
        if _groups == 0:
            end()


def end() -> None:
    global _members
    _members = []
    perseus_core.shutdown()
    callback_threads.end_idle()


def _start(options: Any) -> None:
    world = World(options.group_rank, options.group_size, options.store)
    with numbered_ranks.numbered(world):
        perseus_core.init()
    _require(world.rank, world.size)
    share_processors()
    c10d_sets.agree_on_used_numbers()


def _is_of_members() -> bool:
    """Returns whether the engine still has the world that a group has made."""
    return (
        bool(_members)
        and perseus_core.is_initialized()
        and perseus_core.size() == len(_members)
        and _members[perseus_core.rank()] == dist.get_rank()
    )


def _require(rank: int, size: int) -> None:
    """Raises ValueError if the engine has other numbers than torch.distributed."""
    if (perseus_core.rank(), perseus_core.size()) != (rank, size):
        raise ValueError(
            f"this is rank {rank} of {size} in torch.distributed, and rank {perseus_core.rank()} "
            f"of {perseus_core.size()} in Perseus, which was initialized before; call "
            "init_process_group first, or shutdown, and both will agree"
        )
