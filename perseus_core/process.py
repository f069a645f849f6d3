"""This process in the job: init, shutdown, ranks, process sets."""

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

from perseus_core import _engine, callbacks, names
from perseus_core.arguments import whole_number

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

# Scripts written for Horovod look for this text.
NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."

# What init was given, to tell who asks for another world.
_world: list[int] | None = None


def init(ranks: Sequence[int] | None = None) -> None:
    """Joins the other processes of the job; blocks until all have come.

    Args:
      ranks: the launched ranks that form the world; None for all. A rank left out gets a world of
        its own.

    A second call without shutdown between does nothing, and warns if it asks for another world.
    Raises ValueError for a malformed setting, UnreachableError or TimedOutError if the others
    cannot be found.
    """
    global _world
    asked = None if ranks is None else [whole_number("a rank of the world", r) for r in ranks]
    if _engine.is_initialized():
        if asked is not None and asked != launched_ranks():
            warnings.warn(
                f"init was called again, with ranks={asked}; this is ignored, for the world was "
                f"made of {launched_ranks()} and stays so until shutdown",
                stacklevel=2,
            )
        return
    _engine.init(asked)
    _places.clear()
    _world = asked
    names.restart()
    _at_exit()


def shutdown() -> None:
    """Leaves the job. What all ranks have agreed on may still complete, for 2 s; other operations
    under way, here and elsewhere, fail with AbortedError.

    Harmless when not initialized. init may be called again.
    """
    _engine.shutdown()


def is_initialized() -> bool:
    return _engine.is_initialized()


def rank() -> int:
    """This process's rank in the world, and in a forked child its parent's.

    ValueError when not initialized, as for all the ranks.
    """
    return _known(_engine.rank)


def size() -> int:
    """Number of ranks in the world."""
    return _known(_engine.size)


def launched_ranks() -> list[int]:
    """The launched ranks that form the world, as init was given them."""
    return list(range(size())) if _world is None else _world


def local_rank() -> int:
    """Rank among those of this host."""
    return _known(_engine.local_rank)


def local_size() -> int:
    """Number of ranks on this host."""
    return _known(_engine.local_size)


def cross_rank() -> int:
    """Rank among the ranks with this local rank, one a host."""
    return _known(_engine.cross_rank)


def cross_size() -> int:
    """Number of ranks with this local rank."""
    return _known(_engine.cross_size)


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks."""
    return bool(_known(_engine.is_homogeneous))


def mpi_thread_level() -> int | None:
    """What MPI was initialised with, from MPI_THREAD_SINGLE, 0, to MPI_THREAD_MULTIPLE, 3.

    None where the ranks met without MPI, and when not initialized.
    """
    level = _engine.mpi_thread_level()
    return None if level < 0 else level


def add_process_set(ranks: Sequence[int]) -> int:
    """Makes a set of these ranks and gives its id, the same on all ranks.

    Called by all ranks of the world, members or not, with the same ranks; blocks until all have.
    ValueError if a set of these ranks exists. Where one rank gives what can be no set, the others
    get MismatchError.
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
    """Fails the add_process_set that the other ranks are in: this rank has no set to give."""
    with contextlib.suppress(Exception):
        _engine.add_process_set([-1])  # which the engine refuses, on all ranks


def remove_process_set(process_set: int) -> None:
    """Takes a set away. Called by all ranks of the world; blocks until all have."""
    _engine.remove_process_set(whole_number("process_set", process_set))


def process_set_rank(process_set: int) -> int:
    """This process's rank in the set; -1 if it is no member or there is no such set."""
    return _engine.process_set_rank(whole_number("process_set", process_set))


def process_set_size(process_set: int) -> int:
    """Number of ranks in the set; -1 if there is no such set."""
    return _engine.process_set_size(whole_number("process_set", process_set))


def process_set_ranks(process_set: int) -> list[int]:
    """The set's ranks, ascending; ValueError if there is no such set."""
    return _engine.process_set_ranks(whole_number("process_set", process_set))


def process_sets() -> dict[int, list[int]]:
    """The ranks of every set there is, by id."""
    return {number: _engine.process_set_ranks(number) for number in _engine.process_sets()}


def _known(query: Callable[[], int]) -> int:
    value = query()
    if value < 0 and os.getpid() != _places_of:
        value = _places.get(query, -1)
    if value < 0:
        raise ValueError(NOT_INITIALIZED)
    return value


# A forked child, such as a data loader's worker, is in no job, and may want its parent's place.
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
    """The engine must be gone before the interpreter and the arrays it works on are."""
    global _leaves_at_exit
    if not _leaves_at_exit:
        _leaves_at_exit = True
        atexit.register(_leave)
        # Python waits for threads first, which may wait for this rank's next operation.
        if before_threads := getattr(threading, "_register_atexit", None):
            with contextlib.suppress(RuntimeError):  # the end has begun
                before_threads(_leave_if_failed)


def _leave() -> None:
    _engine.shutdown(_failure())
    callbacks.stop()


def _leave_if_failed() -> None:
    if failure := _failure():
        _engine.shutdown(failure)


def _failure() -> str:
    """The exception that ends the script, in a line; empty if none does."""
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):  # at a prompt it has not ended anything
        return ""
    return textwrap.shorten("".join(traceback.format_exception_only(type(error), error)), 300)
