"""Process sets, which are groups of ranks that run collectives among themselves."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import perseus_core
from perseus.common.communicators import is_communicator, ranks_within
from perseus.common.world import World, current_world, gather_lists
from perseus_core.process import NOT_INITIALIZED, refuse_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set", "set_id"]

_DYNAMIC = "PERSEUS_DYNAMIC_PROCESS_SETS"
_NEEDS_COMM = (
    "a ProcessSet made of a communicator is for init(comm, process_sets=[...]) with an mpi4py "
    "communicator as comm; elsewhere it takes ranks"
)


#: Returns the ranks of the set in a world. Each rank calls it with the world as it sees it.
Rule: TypeAlias = Callable[[World], Iterable[int]]


class ProcessSet:
    """A group of ranks of the world, which can be used once it is registered.

    init and add_process_set register it.

    It can be made of an mpi4py communicator if init is given one as well. Each rank passes the
    communicator that it belongs to, so a split gives as many sets as it has parts.

    It can be made of a rule, too: a function that is given the world (perseus.common.world) and
    returns the ranks, such as `lambda world: world.host` for the ranks of each host. Ranks that
    return others are in other parts, as with a communicator. If the ranks of a rule are those of a
    set that exists, it is another name for that.

    In elastic training, the sets that init was given are made anew in each world: a rule is asked
    again, and a list of ranks stands for the processes that have these ranks now. A list with a
    rank that the new world lacks is not registered in it.

    Attributes:
      process_set_id: the engine's number of the set; None while it is not registered.
      ranks: its ranks of the world, ascending; None before init if it is made of a communicator or
        a rule.
      mpi_comm: the communicator that it is made of, or None.
      rule: the rule that it is made of, or None.
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        self.rule: Rule | None = None
        if is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
            return
        if callable(ranks_or_comm):
            self.rule = ranks_or_comm
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

# A rank's word that its rule has failed.
_FAILED = [-1]

# By their numbers, without the global one.
_registered: dict[int, ProcessSet] = {}

# Other names for sets that are registered, or for the global one.
_aliases: list[ProcessSet] = []

# The sets that init was given, and those that it is to take over from an earlier world.
_given: list[ProcessSet] = []
_carried: list[ProcessSet] | None = None


def add_process_set(process_set: ProcessSet | Iterable[int] | Rule) -> ProcessSet:
    """Registers a set, or makes one of a sequence of ranks or of a rule.

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
    for one in _with_parts([process_set]) if process_set.rule else [process_set]:
        _register(one)
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
    if any(process_set is one for one in _aliases):
        raise ValueError(f"{process_set} is another name for a process set; remove that one")
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


@contextlib.contextmanager
def carried_over() -> Iterator[None]:
    """Has an init within the context make the sets of the last one anew."""
    global _carried
    _carried = list(_given)
    try:
        yield
    finally:
        _given[:], _carried = _carried, None  # init may have failed, and will be called again


def carried() -> list[ProcessSet] | None:
    """Returns the sets that init is to make anew; None outside of carried_over."""
    return _carried


def setup(
    process_sets: Sequence[ProcessSet], comm: Any = None, is_new_world: bool = False
) -> ValueError | None:
    """Registers the sets that init was given. All ranks call it once the engine runs.

    Returns the error of the first set that is a duplicate, if one is; all other sets are registered
    nevertheless. If a set is refused for another reason, raises that error, and those before it
    stay registered.

    Args:
      comm: the communicator that the world is made of, if one was given.
      is_new_world: the sets are those of an earlier world. One whose ranks are those of another is
        another name for it now, and lists with ranks that the world lacks are left out.
    """
    refresh_global()
    _given[:] = [one for one in process_sets if one.mpi_comm is None]
    if process_sets and (is_communicator(comm) or any(one.rule for one in process_sets)):
        process_sets = _with_parts(process_sets, comm)
    refused = None
    for process_set in process_sets:
        ranks = process_set.ranks or []
        if is_new_world and any(rank >= perseus_core.size() for rank in ranks):
            continue
        try:
            _register(process_set, may_be_alias=is_new_world)
        except ValueError as error:
            if ranks not in perseus_core.process_sets().values():
                raise
            refused = refused or error
    return refused


def refresh_global() -> None:
    """Has the global set know its ranks."""
    global_process_set.ranks = perseus_core.process_set_ranks(perseus_core.WORLD)


def _with_parts(process_sets: Sequence[ProcessSet], comm: Any = None) -> list[ProcessSet]:
    """Gives sets of communicators and rules their ranks, and adds parts that others are in.

    All ranks must register the same sets. `comm` is the communicator that the world is made of.
    """
    world = current_world() if any(one.rule for one in process_sets) else None
    failure = None
    try:
        mine = [_ranks_of(one, comm, world) for one in process_sets]
    except Exception as error:  # the others wait for this rank's
        failure, mine = error, [_FAILED] * len(process_sets)
    given_by = gather_lists(mine)
    if failure is not None:
        raise failure
    whole = []
    for index, process_set in enumerate(process_sets):
        parts = {tuple(given[index]): None for given in given_by if given[index]}
        is_list = process_set.mpi_comm is None and process_set.rule is None
        if is_list and len(parts) > 1:
            raise ValueError(
                f"the ranks gave init different ranks for process set {index}: "
                f"{' and '.join(str(list(part)) for part in parts)}; every rank must give the same"
            )
        if process_set.rule is not None and not mine[index]:
            process_set.ranks = []
        for part in map(list, parts):
            if not is_list:
                _check_part(index, part, process_set)
            if part == mine[index] or (not mine[index] and len(parts) == 1):
                process_set.ranks = part
                whole.append(process_set)
            else:
                other = ProcessSet(part)
                other.rule = process_set.rule
                whole.append(other)
    return whole


def _ranks_of(process_set: ProcessSet, comm: Any, world: World | None) -> list[int]:
    if process_set.mpi_comm is not None:
        return ranks_within(process_set.mpi_comm, comm)
    if process_set.rule is not None and world is not None:
        return sorted(ProcessSet(process_set.rule(world)).ranks or [])
    return process_set.ranks or []


def _check_part(index: int, part: list[int], process_set: ProcessSet) -> None:
    if part == _FAILED:
        raise ValueError(f"another rank found no ranks for process set {index}; its error says why")
    if process_set.mpi_comm is not None and (part != sorted(part) or part[0] < 0):
        raise ValueError(
            f"process set {index} of init is made of a communicator of the ranks {part} of "
            "comm; they must be ranks of it, in ascending order"
        )
    size = perseus_core.size()
    if process_set.rule is not None and not all(0 <= rank < size for rank in part):
        raise ValueError(
            f"the rule of process set {index} gave the ranks {part}; they must be ranks of the "
            f"world, from 0 to {size - 1}"
        )


def forget() -> None:
    """Marks all sets as not registered, after the engine has shut down."""
    for process_set in _registered.values():
        process_set.process_set_id = None
    for process_set in _aliases:
        process_set.process_set_id = None
    _registered.clear()
    _aliases.clear()


def _register(process_set: ProcessSet, may_be_alias: bool = False) -> None:
    if may_be_alias or process_set.rule is not None:
        for number, ranks in perseus_core.process_sets().items():  # the same on all ranks
            if ranks == process_set.ranks:
                process_set.process_set_id = number
                _aliases.append(process_set)
                return
    # The engine refuses a set that is registered already, on all ranks.
    number = perseus_core.add_process_set(process_set.ranks or [])
    process_set.process_set_id = number
    _registered[number] = process_set


_dynamic_by_init = False


def choose_dynamic(dynamic: bool, is_fixed: bool) -> None:
    """Notes what init is given: "dynamic", which lasts for later worlds too, or fixed sets."""
    global _dynamic_by_init
    if dynamic and os.environ.get(_DYNAMIC) != "1":
        os.environ[_DYNAMIC] = "1"
        _dynamic_by_init = True
    elif is_fixed and _dynamic_by_init:
        os.environ.pop(_DYNAMIC, None)
        _dynamic_by_init = False


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
