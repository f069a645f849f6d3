"""How ranks that lack the state get it from those that have it, once a world has formed.

Only ranks that lack it receive: from a rank of their own host, or else a part from each of several
hosts, so that a peer's link is no limit as long as that of the receiver is not full. What the ranks
that have the state do not have alike, such as statistics of each rank's own batches, is left to the
caller, who gives it to all from rank 0.

An adapter gives a framework's tensors in one of two ways. Tensors that can be written to in place
become Parts, for `left_by`. Variables that functions read and write go through `fill_variables`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

import perseus_core
from perseus.common import objects
from perseus.common.process_sets import global_process_set
from perseus.common.state_digest import BITS, digest
from perseus.common.world import current_world
from perseus_core import driver_link, opened_sets

__all__ = [
    "Bytes",
    "Group",
    "Part",
    "StateSources",
    "bytes_at",
    "bytes_of",
    "groups_of",
    "left_by",
    "sources_among",
]

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]

#: More hosts than this do not fill a link sooner.
MOST_SOURCES = 8
#: All ranks meet after so many bytes. Otherwise those that neither give nor receive would wait for
#: the others as long as a large state takes, and the others be given up as ranks that hang.
BYTES_OF_A_ROUND = 4 << 30
#: A part of a tensor begins at a multiple of so many bytes.
ALIGNMENT = 64

_NONE = -1
_LEAST = -(1 << BITS)


class Part(NamedTuple):
    """A part of the state: what it is, which ranks compare, and its memory.

    A rank that has the state does not write to that memory, which may be read-only there.
    """

    description: str
    data: Bytes


class Group(NamedTuple):
    """Each of the sources gives a part of the state to all of the receivers."""

    sources: tuple[int, ...]
    receivers: tuple[int, ...]


def groups_of(hosts: Sequence[Sequence[int]], holders: Collection[int]) -> list[Group]:
    """Returns who gives the state to whom.

    Args:
      hosts: the ranks of each host.
      holders: those that have the state, at least one.
    """
    groups: list[Group] = []
    sources: list[int] = []
    far: list[int] = []
    for ranks in hosts:
        have = [rank for rank in ranks if rank in holders]
        lack = [rank for rank in ranks if rank not in holders]
        sources += have[:1]
        if have and lack:
            groups.append(Group((have[0],), tuple(lack)))
        elif lack:
            far += lack
    if far:
        groups.append(Group(tuple(sources[:MOST_SOURCES]), tuple(far)))
    return groups


def bytes_of(array: npt.NDArray[Any]) -> Bytes | None:
    """Returns the bytes of an array; None if they are not in one piece, or are none."""
    if not array.flags.c_contiguous or array.size == 0 or array.dtype.hasobject:
        return None
    return array.reshape(-1).view(np.uint8)


def bytes_at(address: int, size: int) -> Bytes:
    """Returns the memory at an address as an array, which does not keep that memory."""
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memoryview(memory), np.uint8)


def left_by(
    sources: StateSources | None,
    tensors: Mapping[str, T],
    part_of: Callable[[T], Part | None],
) -> dict[str, T]:
    """Fills tensors of ranks that lack the state in place; returns those that it has left.

    Rank 0 has to give these to all. All ranks must call it, and all get the same names.

    Args:
      sources: None if rank 0 gives all.
      tensors: by name, in the same order on all ranks.
      part_of: gives a tensor's memory; None if it must come from rank 0, such as on a GPU.
    """
    if sources is None:
        return dict(tensors)
    filled = sources.fill({name: part_of(tensor) for name, tensor in tensors.items()})
    return {name: tensor for name, tensor in tensors.items() if name not in filled}


@contextmanager
def sources_among(holders: Collection[int]) -> Iterator[StateSources | None]:
    """Gives the sources of the state; None if rank 0 is to give it to all. All ranks must call it.

    Args:
      holders: the ranks that have the state, the same on all; none if that is not known.
    """
    if 0 not in holders or len(holders) == perseus_core.size():
        yield None
        return
    sources = StateSources(holders, groups_of(current_world().hosts, holders))
    yield sources
    sources.close()  # after an error, the world ends, and the sets with it


class StateSources:
    """Gives ranks what they lack, in one sync of the state."""

    def __init__(self, holders: Collection[int], groups: Sequence[Group]) -> None:
        self._rank = perseus_core.rank()
        self._holders = holders
        self._groups = groups
        self._opened: dict[tuple[int, int], int] = {}
        self._numbers = _numbers_of_next_sync(sum(len(group.sources) for group in groups))

    @property
    def has_state(self) -> bool:
        """Returns whether this rank has the state."""
        return self._rank in self._holders

    def fill(self, parts: Mapping[str, Part | None]) -> set[str]:
        """Fills the parts of ranks that lack the state; returns the names of those it has filled.

        All ranks must call it, and all get the same names. Parts which differ between the ranks
        that have the state, or in their descriptions, and those that are None on a rank, are left.

        Args:
          parts: by name, in the same order on all ranks.

        Raises ValueError on all ranks if their names differ.
        """
        _check_names(list(parts))
        filled = self._alike(parts)
        present = [(name, part.data) for name in filled if (part := parts[name]) is not None]
        ends = list(itertools.accumulate(data.size for _, data in present))
        total = ends[-1] if ends else 0
        for begin in range(0, total, BYTES_OF_A_ROUND):
            if begin > 0:
                perseus_core.barrier()
            end = min(begin + BYTES_OF_A_ROUND, total)
            self._move(list(_cut(present, begin, end)), end - begin)
        return set(filled)

    def fill_variables(
        self,
        variables: Sequence[Any],
        values_of: Callable[[Sequence[Any]], list[npt.NDArray[Any]]],
        assign: Callable[[Sequence[Any], Sequence[npt.NDArray[Any]]], None],
    ) -> list[Any]:
        """Does the same with variables that functions read and write; returns those it has left.

        Args:
          values_of: returns arrays, which may be in the variables' own memory and read-only.
          assign: gets arrays that nobody else has. It is called once all have arrived: variables
            stay as they are if a rank is lost before.
        """
        values = [np.asarray(value, order="C") for value in values_of(variables)]
        if not self.has_state:
            values = [np.empty_like(value) for value in values]
        parts: dict[str, Part | None] = {}
        for number, value in enumerate(values):
            data = bytes_of(value)
            described = f"{value.dtype} {value.shape}"
            parts[str(number)] = None if data is None else Part(described, data)
        filled = self.fill(parts)
        numbers = [number for number in range(len(values)) if str(number) in filled]
        if not self.has_state:
            assign([variables[i] for i in numbers], [values[i] for i in numbers])
        return [each for i, each in enumerate(variables) if str(i) not in filled]

    def close(self) -> None:
        for process_set in self._opened.values():
            opened_sets.close_set(process_set)

    def _alike(self, parts: Mapping[str, Part | None]) -> list[str]:
        """Returns the names of parts that all have, and that those with the state have alike."""
        marks = np.full((4, len(parts)), _NONE, np.int64)
        for column, (name, part) in enumerate(parts.items()):
            if part is None:
                marks[:, column] = _NONE, -_NONE, _NONE, -_NONE
                continue
            size = str(part.data.size)
            kind = digest(part.data[:0], name, part.description, size)
            content = digest(part.data) if self.has_state and len(self._holders) > 1 else 0
            known = (content, -content) if self.has_state else (_LEAST, _LEAST)
            marks[:, column] = kind, -kind, *known
        if not parts:
            return []
        top = perseus_core.allreduce(marks, perseus_core.ReduceOp.MAX, name="elastic.state.marks")
        alike = (top[0] >= 0) & (top[0] == -top[1]) & (top[2] == -top[3])
        return [name for name, is_alike in zip(parts, alike, strict=True) if is_alike]

    def _move(self, pieces: Sequence[tuple[str, Bytes]], total: int) -> None:
        """Gives the receivers these pieces, which have so many bytes in all."""
        handles = []
        error: Exception | None = None
        for number, (sources, receivers) in enumerate(self._groups):
            for index, source in enumerate(sources):
                if self._rank not in (source, *receivers):
                    continue
                try:
                    process_set = self._set(number, index)
                    begin, end = (_border(total, k, len(sources)) for k in (index, index + 1))
                    handles += [
                        perseus_core.broadcast_async(
                            piece, source, name=name, process_set=process_set, out=_target(piece)
                        )
                        for name, piece in _cut(pieces, begin, end)
                    ]
                except Exception as failure:
                    error = error or failure
        # If one fails, so do the others soon; until then, the engine uses their memory.
        for handle in handles:
            try:
                handle.wait()
            except Exception as failure:
                error = error or failure
        if error is not None:
            raise error

    def _set(self, group: int, index: int) -> int:
        """Returns the process set of a source of a group and its receivers."""
        sources, receivers = self._groups[group]
        ranks = sorted((sources[index], *receivers))
        if len(ranks) == perseus_core.size():
            return perseus_core.WORLD
        if (group, index) not in self._opened:
            before = sum(len(each.sources) for each in self._groups[:group])
            number = self._numbers[before + index]
            self._opened[group, index] = opened_sets.open_set(number, ranks)
        return self._opened[group, index]


def _check_names(names: list[str]) -> None:
    mine = np.array([[len(names), digest(np.empty(0, np.uint8), *names)]], np.int64)
    of_all = perseus_core.allgather(mine, name="elastic.state.names")
    if (of_all == of_all[0]).all():
        return
    named = objects.allgather_object(names, "elastic.state.names.all", global_process_set)
    rank = next(rank for rank, theirs in enumerate(named) if theirs != named[0])
    both = itertools.zip_longest(named[rank], named[0])
    number, (name, wanted) = next((i, pair) for i, pair in enumerate(both) if len(set(pair)) > 1)
    raise ValueError(
        f"the state of rank {rank} has {len(named[rank])} tensors, that of rank 0 "
        f"{len(named[0])}; tensor {number} is {_quoted(name)} on rank {rank} and {_quoted(wanted)} "
        "on rank 0. All ranks must make the same models and optimizers"
    )


def _quoted(name: str | None) -> str:
    return "missing" if name is None else f"'{name}'"


def _target(piece: Bytes) -> Bytes:
    """Returns the piece as an array that may be written to.

    The engine writes to that of no rank that gives it, whose memory may be read-only.
    """
    return piece if piece.flags.writeable else bytes_at(piece.ctypes.data, piece.size)


def _cut(pieces: Sequence[tuple[str, Bytes]], begin: int, end: int) -> Iterator[tuple[str, Bytes]]:
    """Returns what is between two places of all pieces' bytes, one after the other."""
    at = 0
    for name, data in pieces:
        first, last = max(begin - at, 0), min(end - at, data.size)
        if first < last:
            whole = (first, last) == (0, data.size)
            yield (name if whole else f"{name}.from.{first}"), data[first:last]
        at += data.size


def _border(total: int, index: int, count: int) -> int:
    """Returns where part `index` of `count` begins."""
    return total if index == count else total * index // count // ALIGNMENT * ALIGNMENT


# The world of the last sync, and how many sets those of this world have used.
_last_world: int | None = None
_used = 0


def _numbers_of_next_sync(count: int) -> range:
    """Returns numbers for process sets that none has had in this world, the same on all ranks.

    Other worlds have had them: names of operations are kept for ever, for each set.
    """
    global _last_world, _used
    link = driver_link.link()
    world = link.world.meeting if link and link.world else None
    if world != _last_world:
        _last_world, _used = world, 0
    first = opened_sets.FIRST_OF_STATES + _used
    _used += count
    return range(first, first + count)
