"""Process sets, which are groups of ranks that run collectives among themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import perseus_core
from perseus.common.communicators import is_communicator, ranks_within
from perseus_core.process import NOT_INITIALIZED, refuse_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set", "set_id"]

_DYNAMIC = "PERSEUS_DYNAMIC_PROCESS_SETS"
_NEEDS_COMM = (
    "a ProcessSet made of a communicator is for init(comm, process_sets=[...]) with an mpi4py "
    "communicator as comm; elsewhere it takes ranks"
)


class ProcessSet:
    """A group of ranks of the world, which can be used once it is registered.

    init and add_process_set register it.

    It can be made of an mpi4py communicator if init is given one as well. Each rank passes the
    communicator that it belongs to, so a split gives as many sets as it has parts.

    Attributes:
      process_set_id: the engine's number of the set; None while it is not registered.
      ranks: its ranks of the world, ascending; None before init if it is made of a communicator.
      mpi_comm: the communicator that it is made of, or None.
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        if is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
            return
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError(
                f"a ProcessSet takes the ranks in it, not {type(ranks_or_comm).__name__}"
            )
        ranks = list(ranks_or_comm)
        for rank in ranks:
            if not isinstance(rank, int):
                raise ValueError(f"a rank of a ProcessSet must be an int, not {rank!r}")
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """Returns the number of ranks; None while the set is not registered."""
        if self.process_set_id is None:
            return None
        size = perseus_core.process_set_size(self.process_set_id)
        if size < 0:
            raise ValueError(self._unknown())
        return size

    def rank(self) -> int | None:
        """Returns this process's rank in the set; None while the set is not registered."""
        if self.process_set_id is None:
            return None
        rank = perseus_core.process_set_rank(self.process_set_id)
        if rank < 0:
            raise ValueError(
                self._unknown()
                if perseus_core.process_set_size(self.process_set_id) < 0
                else f"rank {perseus_core.rank()} is not in {self}"
            )
        return rank

    def included(self) -> bool | None:
        """Returns whether this process is in the set; None while the set is not registered."""
        if self.process_set_id is None:
            return None
        if perseus_core.process_set_size(self.process_set_id) < 0:
            raise ValueError(self._unknown())
        return perseus_core.process_set_rank(self.process_set_id) >= 0

    def _unknown(self) -> str:
        if not perseus_core.is_initialized():
            return NOT_INITIALIZED
        return f"{self} was removed"

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


#: The set of all ranks.
global_process_set = ProcessSet([])
global_process_set.process_set_id = perseus_core.WORLD

# By their numbers, without the global one.
_registered: dict[int, ProcessSet] = {}


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a set, or makes one of a sequence of ranks.

    All ranks of the world must call it, members or not; it blocks until all have. Raises ValueError
    if a set of these ranks exists, or if process sets are fixed: init(process_sets="dynamic") or
    PERSEUS_DYNAMIC_PROCESS_SETS=1 allows changes.
    """
    _require_dynamic()
    if not isinstance(process_set, ProcessSet):
        try:
            process_set = ProcessSet(process_set)
        except ValueError:
            refuse_process_set()
            raise
    if process_set.mpi_comm is not None:
        refuse_process_set()
        raise NotImplementedError(_NEEDS_COMM)
    _register(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set; returns False for the set of all ranks and for one that is not registered.

    All ranks of the world must call it; it blocks until all have.
    """
    _require_dynamic()
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {type(process_set).__name__}; it takes a ProcessSet")
    if process_set.process_set_id in (None, perseus_core.WORLD):
        return False
    number = set_id(process_set)
    perseus_core.remove_process_set(number)
    _registered.pop(number).process_set_id = None
    process_set.process_set_id = None
    return True


def set_id(process_set: ProcessSet) -> int:
    """Returns the engine's number of the set; raises ValueError if it is not registered."""
    if process_set is global_process_set:
        return perseus_core.WORLD
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set is {type(process_set).__name__}; it takes a ProcessSet")
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"{process_set} is not registered; give it to init or add_process_set")
    registered = global_process_set if number == perseus_core.WORLD else _registered.get(number)
    # A copy of a set is as good as the set.
    if registered is not process_set and (
        registered is None or registered.ranks != process_set.ranks
    ):
        raise ValueError(
            f"{process_set} is not registered, and its number is that of {registered or 'no set'}; "
            "give it to init or add_process_set, which set the number"
        )
    return number


def require_communicator(process_sets: Iterable[ProcessSet], comm: Any) -> None:
    """Raises NotImplementedError for sets made of communicators if init's `comm` is not one."""
    if not is_communicator(comm) and any(one.mpi_comm is not None for one in process_sets):
        raise NotImplementedError(_NEEDS_COMM)


def setup(process_sets: Sequence[ProcessSet], comm: Any = None) -> ValueError | None:
    """Registers the sets that init was given. All ranks call it once the engine runs.

    Returns the error of the first set that is a duplicate, if one is; all other sets are registered
    nevertheless. If a set is refused for another reason, raises that error, and those before it
    stay registered. `comm` is the communicator that the world is made of, if one was given.
    """
    global_process_set.ranks = perseus_core.process_set_ranks(perseus_core.WORLD)
    if process_sets and is_communicator(comm):
        process_sets = _with_parts(process_sets, comm)
    refused = None
    for process_set in process_sets:
        try:
            _register(process_set)
        except ValueError as error:
            if process_set.ranks not in perseus_core.process_sets().values():
                raise
            refused = refused or error
    return refused


def _with_parts(process_sets: Sequence[ProcessSet], world: Any) -> list[ProcessSet]:
    """Gives sets of communicators their ranks, and adds the parts that only other ranks are in.

    All ranks must register the same sets.
    """
    mine = [
        ranks_within(one.mpi_comm, world) if one.mpi_comm is not None else one.ranks or []
        for one in process_sets
    ]
    given_by = _gather_lists(mine)
    whole = []
    for index, process_set in enumerate(process_sets):
        parts = {tuple(given[index]): None for given in given_by if given[index]}
        if process_set.mpi_comm is None and len(parts) > 1:
            raise ValueError(
                f"the ranks gave init different ranks for process set {index}: "
                f"{' and '.join(str(list(part)) for part in parts)}; every rank must give the same"
            )
        for part in map(list, parts):
            if part != sorted(part) or part[0] < 0:
                raise ValueError(
                    f"process set {index} of init is made of a communicator of the ranks {part} of "
                    "comm; they must be ranks of it, in ascending order"
                )
            if part == mine[index] or (not mine[index] and len(parts) == 1):
                process_set.ranks = part
                whole.append(process_set)
            else:
                whole.append(ProcessSet(part))
    return whole


def _gather_lists(mine: list[list[int]]) -> list[list[list[int]]]:
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


def forget() -> None:
    """Marks all sets as not registered, after the engine has shut down."""
    for process_set in _registered.values():
        process_set.process_set_id = None
    _registered.clear()


def _register(process_set: ProcessSet) -> None:
    # The engine refuses a set that is registered already, on all ranks.
    number = perseus_core.add_process_set(process_set.ranks or [])
    process_set.process_set_id = number
    _registered[number] = process_set


def are_dynamic() -> bool:
    """Returns whether sets may be added and removed after init."""
    return any(
        setting.name == _DYNAMIC and setting.value in ("1", "true")
        for setting in perseus_core.settings()
    )


def _require_dynamic() -> None:
    if not perseus_core.is_initialized():
        raise ValueError(NOT_INITIALIZED)
    if not are_dynamic():
        raise ValueError(
            "process sets cannot change after init unless it was called with "
            f'process_sets="dynamic" or {_DYNAMIC}=1 was set'
        )
