"""Ranks that torch.distributed has numbered, and no launcher.

So they are given to init_process_group as arguments, as under torch.multiprocessing.spawn. Where
the launcher of this process says the same, ranks meet as they do under that launcher. Otherwise
they meet through PyTorch's store (store_meeting.py).
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator

import torch.distributed as dist

from perseus.torch.store_meeting import Meeting, World
from perseus_core import process

__all__ = ["find_place", "given_store", "numbered"]

# That of the init_process_group or new_group that is under way.
_given: World | None = None


@contextlib.contextmanager
def numbered(world: World) -> Iterator[None]:
    """Within it, init makes a world of these ranks."""
    global _given
    before, _given = _given, world
    try:
        yield
    finally:
        _given = before


def given_store() -> dist.Store | None:
    """Returns the store of the group that is being made."""
    return None if _given is None else _given.store


@contextlib.contextmanager
def find_place(ranks: list[int] | None) -> Iterator[process.Place | None]:
    """Does what perseus_core.process.find_place is for."""
    world = _given or _world_of_torch()
    if world is None or _is_launchers(world):
        yield None
    elif world.size == 1:
        yield process.Place(0, 1)
    elif ranks is not None and world.rank not in (0, *ranks):
        yield process.Place(world.rank, world.size)  # it is left out, and meets nobody
    else:
        meeting = Meeting(world, range(world.size) if ranks is None else ranks)
        yield meeting.place()
        meeting.end()


def _world_of_torch() -> World | None:
    """Returns that of init_process_group, if the program has called it with some backend."""
    if not dist.is_initialized() or dist.get_backend() == "fake":
        return None
    store = dist.distributed_c10d._get_default_store()
    return World(dist.get_rank(), dist.get_world_size(), store)


def _is_launchers(world: World) -> bool:
    """Returns whether this process was launched as that rank of that world.

    A process that multiprocessing has started inherits the variables of its parent, which was
    launched. A rank that is only derived is not what all processes find in their environments.
    """
    if multiprocessing.parent_process() is not None:
        return False
    try:
        rank, size, variable = process.launched_as()
    except ValueError:
        return False
    return variable not in ("", "LOCAL_RANK") and rank == world.rank and size in (0, world.size)


process.find_place = find_place
