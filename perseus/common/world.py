"""The world as rules see it that make process sets; see perseus.common.process_sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import perseus_core

__all__ = ["World", "current_world", "gather_lists"]


@dataclass(frozen=True)
class World:
    """The ranks that work together now, the same on all ranks but for `rank`."""

    #: This process's rank.
    rank: int
    #: The ranks of each host, ascending; the hosts are in the order of their first ranks.
    hosts: list[list[int]]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.hosts))

    @property
    def host(self) -> list[int]:
        """The ranks of this process's host."""
        return next(ranks for ranks in self.hosts if self.rank in ranks)


def current_world() -> World:
    """Returns the world that this process is in. All ranks must call it; it blocks until all have.

    Raises HorovodInternalError if a rank is lost meanwhile.
    """
    mine = [perseus_core.local_rank(), perseus_core.local_size(), perseus_core.cross_rank()]
    places = perseus_core.allgather(np.array([mine]), name="world.places").tolist()
    firsts = sorted((cross, size) for local, size, cross in places if local == 0)
    sizes = [size for _, size in firsts]  # by host
    hosts: list[list[int]] = [[] for _ in sizes]
    for rank, (local, _, cross) in enumerate(places):
        # Each host with so many ranks has one of this local rank, in the hosts' order.
        hosts[[host for host, size in enumerate(sizes) if size > local][cross]].append(rank)
    return World(perseus_core.rank(), sorted(hosts))


def gather_lists(mine: list[list[int]]) -> list[list[list[int]]]:
    """Returns the lists of every rank, in rank order.

    Raises ValueError on all ranks if the ranks have different numbers of lists.
    """
    flat = [len(mine), *itertools.chain.from_iterable([len(ranks), *ranks] for ranks in mine)]
    numbers = iter(perseus_core.allgather(np.array(flat), name="init.process_sets").tolist())
    gathered = []
    for _ in range(perseus_core.size()):
        gathered.append([_take(numbers, next(numbers)) for _ in range(next(numbers))])
    counts = [len(given) for given in gathered]
    if len(set(counts)) > 1:
        raise ValueError(f"the ranks gave init {counts} process sets; each must give as many")
    return gathered


def _take(numbers: Iterator[int], count: int) -> list[int]:
    return list(itertools.islice(numbers, count))
