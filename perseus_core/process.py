"""The place of this process in the job: init, shutdown, ranks, process sets."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perseus_core import _engine, callbacks, driver_link, names
from perseus_core.arguments import whole_number
from perseus_core.constants import WORLD
from perseus_core.errors import HorovodInternalError
from perseus_core.planned_place import PlannedPlace, planned_place

__all__ = [
    "add_process_set",
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "process_set_rank",
    "process_set_ranks",
    "process_set_size",
    "process_sets",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
]

# Called with the generation of an init, and on rank 0 with the port where it listens. On others
# the port is 0, and it returns the port that rank 0 has left, or 0.
MeetingBoard = Callable[[int, int], int]

# Scripts written for Horovod search for this text.
NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."

# Opens the place where ranks on several hosts leave word of where they meet, for one init; see
# perseus_set_meeting_board in perseus.h. An adapter whose framework has such a place sets it.
open_meeting_board: Callable[[], contextlib.AbstractContextManager[MeetingBoard | None]] = (
    contextlib.nullcontext
)


class Place(NamedTuple):
    """This process's place in a world that the program knows of, and no launcher.

    The fields are those of perseus_init_options_t in perseus.h.
    """

    rank: int
    size: int
    rendezvous: str = ""
    secret: str = ""
    secret_is_known: bool = False
    meeting: int = 0


def _no_place(ranks: list[int] | None) -> contextlib.AbstractContextManager[Place | None]:
    return contextlib.nullcontext()


# Finds out whether the program itself knows a place for this process, with the argument of init;
# its context lasts as long as init. An adapter whose framework numbers processes sets it.
find_place: Callable[[list[int] | None], contextlib.AbstractContextManager[Place | None]] = (
    _no_place
)

# The ranks that init was given, to notice a later call with others.
_world: list[int] | None = None

# The place of a process that has called plan_to_join, and has not joined yet.
_planned: PlannedPlace | None = None
_may_plan = True


def init(ranks: Sequence[int] | None = None) -> None:
    """Joins the other processes of the job; blocks until all have joined.

    Args:
      ranks: the launched ranks that form the world; None for all. A rank that is not among them
        gets a world of its own.

    A second call without a shutdown in between does nothing, and warns if it asks for another
    world. In an elastic job the world is the one that the job's driver decides on; the process ends
    (driver_link.RemovedError) if there is no place for it. Raises ValueError for a malformed
    setting, and in a process that a rank has started while it was in the job: it would take the
    rank's place. Raises UnreachableError or TimedOutError if the other processes cannot be reached.
    """
    global _world, _planned, _may_plan
    asked = None if ranks is None else [whole_number("a rank of the world", r) for r in ranks]
    if _engine.is_initialized():
        if asked is not None and asked != launched_ranks():
            warnings.warn(
                f"init was called again, with ranks={asked}; this is ignored, because the world "
                f"consists of {launched_ranks()} until shutdown",
                stacklevel=2,
            )
        return
    _planned, _may_plan = None, False
    if (driver := driver_link.link()) is not None:
        _join_next_world(driver, asked)
    else:
        _join_given_world(asked)
    _note_holder()
    _places.clear()
    _world = asked
    names.restart()
    _at_exit()


def plan_to_join() -> bool:
    """Takes the place that the launcher has planned, where init would keep other ranks waiting.

    That is so in a process which joins an elastic job that trains already, in the background, the
    first time. Until init joins, ranks and sizes are the planned ones, operations raise
    NotInitializedError, and shutdown gives the place up. Returns False, and does nothing, in all
    other processes.
    """
    global _planned, _may_plan
    if not _may_plan or _engine.is_initialized():
        return _planned is not None
    _may_plan = False
    _planned = planned_place()
    return _planned is not None


def is_planned() -> bool:
    """Returns whether this process has a planned place and has not joined yet."""
    return _planned is not None and _planned.process == os.getpid()


def _join_given_world(asked: list[int] | None) -> None:
    with find_place(asked) as place:
        if place is not None:
            _engine.init(asked, None, place)
        else:
            with open_meeting_board() as board:
                _engine.init(asked, board)


def _join_next_world(driver: driver_link.DriverLink, asked: list[int] | None) -> None:
    """Joins the world that the driver of an elastic job has this process in."""
    if asked is not None:
        raise ValueError(
            f"init was given ranks {asked}; it must have none in an elastic job, whose driver "
            "decides who is in a world"
        )
    failure: HorovodInternalError | None = None
    while True:
        world = driver.next_world(failure)
        secret = os.environ["PERSEUS_SECRET"]
        place = Place(world.worker, world.started, world.rendezvous, secret, False, world.meeting)
        try:
            _engine.init(world.workers, None, place)
        except HorovodInternalError as error:
            failure = error  # one of them has ended meanwhile; the driver knows better
            continue
        return driver.has_joined()


def launched_as() -> tuple[int, int, str]:
    """Returns this process's rank, the number of ranks, and the variable that tells the rank.

    They are what init would find in the environment: 0, 1 and "" without a launcher. The size is 0
    if only MPI itself knows it. The variable is LOCAL_RANK if the rank follows from that and
    others. Raises ValueError if variables are malformed or missing, or launchers contradict each
    other.
    """
    return _engine.launched_as()


def shutdown() -> None:
    """Leaves the job.

    Operations that all ranks have agreed on have 2 s to complete. All other operations in flight
    fail with AbortedError, on the other ranks as well. Does nothing when not initialized. init may
    be called again.
    """
    global _planned
    _planned = None
    _engine.shutdown()
    _note_holder()


def is_initialized() -> bool:
    """Returns whether the process is in a job: between init and shutdown."""
    return _engine.is_initialized() or is_planned()


def rank() -> int:
    """Returns this process's rank in the world; in a forked child, that of its parent.

    Raises ValueError when not initialized, as do the functions below.
    """
    return _known(_engine.rank)


def size() -> int:
    """Returns the number of ranks in the world."""
    return _known(_engine.size)


def launched_ranks() -> list[int]:
    """Returns the launched ranks that form the world, in the order that init was given."""
    return list(range(size())) if _world is None else _world


def local_rank() -> int:
    """Returns the rank among the ranks of this host."""
    return _known(_engine.local_rank)


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return _known(_engine.local_size)


def cross_rank() -> int:
    """Returns the rank among the ranks with the same local rank, one on each host."""
    return _known(_engine.cross_rank)


def cross_size() -> int:
    """Returns the number of ranks with the same local rank."""
    return _known(_engine.cross_size)


def is_homogeneous() -> bool:
    """Returns whether every host has the same number of ranks."""
    return bool(_known(_engine.is_homogeneous))


def processor_share() -> int:
    """Returns how many processors this rank has if the ranks of its machine share them evenly.

    Each rank has told the others which processors it may run on: a launcher may have bound them.
    """
    return _known(_engine.processor_share)


def mpi_thread_level() -> int | None:
    """Returns the thread level of MPI, from MPI_THREAD_SINGLE (0) to MPI_THREAD_MULTIPLE (3).

    None if the ranks met without MPI, or when not initialized.
    """
    level = _engine.mpi_thread_level()
    return None if level < 0 else level


def add_process_set(ranks: Sequence[int]) -> int:
    """Makes a set of these ranks and returns its id, the same on all ranks.

    All ranks of the world must call it with the same ranks, whether or not they are members; it
    blocks until all have. Raises ValueError if a set of these ranks exists, or they cannot form
    one. The other ranks then get MismatchError if they have given others.
    """
    try:
        members = sorted(whole_number("a rank of a process set", rank) for rank in ranks)
        if not members:
            raise ValueError("a process set needs at least one rank")
    except Exception:
        refuse_process_set()
        raise
    try:
        number = _engine.add_process_set(members)
    except ValueError:
        if members == list(range(_engine.size())):
            raise ValueError(
                f"a process set of these ranks exists already: all of them, {members}, are the "
                "global process set"
            ) from None
        raise
    names.restart_set(number)
    return number


def refuse_process_set() -> None:
    """Makes the other ranks' call of add_process_set fail, because this rank has no valid set."""
    with contextlib.suppress(Exception):
        _engine.add_process_set([-1])  # the engine refuses it, on all ranks


def remove_process_set(process_set: int) -> None:
    """Removes a set. All ranks of the world must call it; it blocks until all have."""
    _engine.remove_process_set(whole_number("process_set", process_set))


def process_set_rank(process_set: int) -> int:
    """Returns this process's rank in the set; -1 if it is not a member or there is no such set."""
    if _planned is not None and process_set == WORLD:
        return _planned.rank
    return _engine.process_set_rank(whole_number("process_set", process_set))


def process_set_size(process_set: int) -> int:
    """Returns the number of ranks in the set; -1 if there is no such set."""
    if _planned is not None and process_set == WORLD:
        return _planned.size
    return _engine.process_set_size(whole_number("process_set", process_set))


def process_set_ranks(process_set: int) -> list[int]:
    """Returns the set's ranks, ascending; raises ValueError if there is no such set."""
    if _planned is not None and process_set == WORLD:
        return list(range(_planned.size))
    return _engine.process_set_ranks(whole_number("process_set", process_set))


def process_sets() -> dict[int, list[int]]:
    """Returns the ranks of every set that exists, by id."""
    if _planned is not None:
        return {WORLD: process_set_ranks(WORLD)}
    return {number: _engine.process_set_ranks(number) for number in _engine.process_sets()}


def _known(query: Callable[[], int]) -> int:
    value = query()
    if value < 0 and os.getpid() != _places_of:
        value = _places.get(query, -1)
    if value < 0 and _planned is not None:
        value = getattr(_planned, query.__name__)
    if value < 0:
        raise ValueError(NOT_INITIALIZED)
    return value


# Says which process is the rank; the library sets it (csrc/bootstrap/rank_holder.h).
_RANK_HELD_BY = "PERSEUS_RANK_HELD_BY"


def _note_holder() -> None:
    """Makes os.environ say it, too, which programs copy for the processes that they start."""
    holder = _engine.environment_variable(_RANK_HELD_BY)
    if holder is None:
        os.environ.pop(_RANK_HELD_BY, None)
    elif os.environ.get(_RANK_HELD_BY) != holder:
        os.environ[_RANK_HELD_BY] = holder


# Keeps the ranks for a forked child, such as a data loader's worker, which is in no job itself.
_places: dict[Callable[[], int], int] = {}
_places_of = os.getpid()


def _note_places() -> None:
    global _places_of
    if _engine.is_initialized():
        _places_of = os.getpid()
        for query in (
            _engine.rank,
            _engine.size,
            _engine.local_rank,
            _engine.local_size,
            _engine.cross_rank,
            _engine.cross_size,
            _engine.is_homogeneous,
        ):
            _places[query] = query()


os.register_at_fork(before=_note_places)


_leaves_at_exit = False


def _at_exit() -> None:
    """Has the engine shut down before the interpreter, and the arrays it works on, go away."""
    global _leaves_at_exit
    if not _leaves_at_exit:
        _leaves_at_exit = True
        atexit.register(_leave)
        # Python first waits for threads, and these may wait for this rank's next operation.
        if before_threads := getattr(threading, "_register_atexit", None):
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
                before_threads(_leave_if_failed)


def _leave() -> None:
    _engine.shutdown(_failure())
    callbacks.stop()


def _leave_if_failed() -> None:
    if failure := _failure():
        _engine.shutdown(failure)


def _failure() -> str:
    """Returns the exception that ends the script as one line; "" if none does."""
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):  # at a prompt an exception ends nothing
        return ""
    return textwrap.shorten("".join(traceback.format_exception_only(type(error), error)), 300)
