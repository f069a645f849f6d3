"""The process sets of groups, which the members open by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.distributed as dist

import perseus_core
from perseus_core import ReduceOp, opened_sets

__all__ = ["agree_on_used_numbers", "open_set"]

# Keys in the store: the number of sets in all; how many members of a group have come to open its
# set; and the number of that set.
_SETS = "sets"
_ARRIVED = "arrived"
_SET = "set"
# The highest number of a set that this process has opened, and the highest one that any process
# had opened before the last init_process_group.
_last_set = 0
_last_set_before = 0
# How many times these processes have called init_process_group.
_times = 0


def agree_on_used_numbers() -> None:
    """Agrees on the numbers that are in use already; all ranks call it in init_process_group.

    Groups of an earlier init_process_group have used numbers that must not be used again.
    """
    global _last_set_before, _times
    used = np.array([_last_set, _times + 1])
    used = perseus_core.allreduce(used, ReduceOp.MAX, name="c10d.last_set")
    _last_set_before, _times = int(used[0]), int(used[1])


def _key(name: str) -> str:
    """Returns a key that no earlier init_process_group has used.

    The store may be the same one, as under torchrun, and the groups have the same names again.
    """
    return f"perseus/{_times}/{name}"


def open_set(options: Any, ranks: list[int]) -> int:
    """Opens a process set; all members get its number, once all of them have come.

    Where a backend has been made for another device, as in "cpu:gloo,cuda:perseus", PyTorch drops
    it right after this. In a member that was still connecting to this one, that would fail.
    """
    arrived = options.store.add(_key(_ARRIVED), 1)
    # PyTorch may give a group the name, and so the store, of one that has been destroyed.
    earlier = (arrived - 1) // options.group_size
    key = _key(f"{_SET}/{earlier}")
    if arrived == (earlier + 1) * options.group_size:
        options.store.set(key, str(_next_number()))
    return _open_numbered(int(options.store.get(key)), ranks)


def _next_number() -> int:
    """Returns a number that no set has had."""
    world = dist.distributed_c10d._get_default_store()
    count: int = world.add(_key(_SETS), 1)
    return _last_set_before + count


def _open_numbered(number: int, ranks: list[int]) -> int:
    global _last_set
    _last_set = max(_last_set, number)
    return opened_sets.open_set(number, ranks)
