"""Training while ranks come and go: state that can be restored, and the loop that does it.

It follows Horovod's elastic API. In an elastic job, the driver decides which ranks are in a world,
and all ranks hear at the same operation that the next world will be another one
(perseus_core.driver_link). In other jobs, a reset leads to a world of the ranks that are left, if
the launcher keeps them alive.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import cloudpickle
import numpy as np

import perseus_core
from perseus.common import state_sources
from perseus.common.elastic_progress import Failures
from perseus.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from perseus.common.state_sources import StateSources
from perseus_core import driver_link
from perseus_core.process import is_planned

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "drain",
    "run_fn",
    "run_fn_with_errors",
]

# The name of the operation by which ranks tell each other what they have committed.
_HOLDERS = "perseus.elastic.holders"
# The commits of a rank that had the state, and has it no more.
_LOST = -1

#: Returns rank 0's object on all ranks.
BroadcastObject: TypeAlias = Callable[[Any], Any]


#: A function `train(state, ...)`.
Train = TypeVar("Train", bound=Callable[..., Any])


class HostUpdateResult:
    """How the hosts have changed, as bits that add up."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State(ABC):
    """State that is the same on all ranks and can be restored to the last commit."""

    def __init__(self, bcast_object: BroadcastObject, get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], object]] = []
        # That the present values have seen. 0: they are no other rank's; _LOST: see recover.
        self._commits = 0
        self._most_commits = 0  # of the ranks of this world, when they met
        self._holders: list[int] = []  # the ranks that have most commits, if any has one
        self._sources: StateSources | None = None  # during a sync, unless rank 0 gives all
        # Whether a call of a training function has begun, and rank 0's values are not known yet.
        self._begins_call = False
        self._failures = Failures()  # of the present call

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Registers functions to call after each reset, when rank and size are the new ones."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Notes that the hosts have changed. Any thread may call it."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then checks for changes of the hosts. Every rank must call it."""
        self.save()
        perseus_core.commit_residuals()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if the next world will be another one.

        In an elastic job all ranks know that at the same point of their programs, once no operation
        is outstanding. In other jobs, rank 0 tells what it has been told by on_hosts_updated.
        """
        driver = driver_link.link()
        if driver is not None:
            if driver_link.joins_at_once():
                perseus_core.barrier()  # so that a change of which one rank knows is known to all
            if driver.has_changed():
                raise HostsUpdatedInterrupt(self._next_change() == HostUpdateResult.removed)
            return
        before = last = self._last_updated_timestamp
        changes = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, change = self._host_messages.get()
            if timestamp > last:
                last = timestamp
                changes |= change
        before, last, changes = self._bcast_object((before, last, changes))
        self._last_updated_timestamp = last
        if last > before:
            raise HostsUpdatedInterrupt(changes == HostUpdateResult.removed)

    def needs_sync(self) -> bool:
        """Returns whether ranks need rank 0's state, all with the same answer. All must call it.

        That is so if a call of a training function begins, or if someone is new, or has committed
        less. If no rank has the values of a commit any more, all raise RuntimeError.
        """
        here = [self._commits, self._begins_call, self._failures.in_a_row]
        of_all = perseus_core.allgather(np.array([here], np.int64), name=_HOLDERS)
        commits, begins, failures = of_all.T.tolist()
        self._failures.in_a_row = max(failures)  # so that all give up at the same time
        most = max(commits)
        if most <= 0 and min(commits) == _LOST:
            raise RuntimeError(
                "no rank has the state of the last commit: all that are left had begun a step when "
                "an operation failed, and the state keeps no copies. Begin again from a checkpoint"
            )
        self._most_commits = most
        self._holders = [rank for rank, seen in enumerate(commits) if seen == most > 0]
        if self._commits < most:
            perseus_core.forget_residuals()  # they are those of an older state
        return any(begins) or len(self._holders) < len(commits)

    def sync_from_holders(self) -> None:
        """Does sync, in which ranks that have the state give it to those that lack it.

        All must call it after needs_sync. The result is the same.
        """
        try:
            with state_sources.sources_among(self._holders) as self._sources:
                self.sync()
        finally:
            self._sources = None

    def has_synced(self) -> None:
        """Notes that this rank has rank 0's values now, after needs_sync and a sync.

        It waits for nobody: if all others are lost, this rank has what they have had.
        """
        self._commits = max(1, self._most_commits)
        self._begins_call = False

    def _next_change(self) -> int:
        changes = HostUpdateResult.no_update
        while not self._host_messages.empty():
            changes |= self._host_messages.get()[1]
        return changes

    @abstractmethod
    def save(self) -> None:
        """Keeps a copy of the state in memory."""

    @abstractmethod
    def restore(self) -> None:
        """Restores the state that was saved last."""

    def recover(self) -> None:
        """Restores the state after a failure, or leaves it to others to give it to this rank.

        A state that cannot be restored, as its values are lost, calls _note_lost before.
        """
        self.restore()

    def _note_lost(self) -> None:
        """Has this rank count as one with no commits, so that it gets the state of another."""
        self._commits = _LOST

    def _has_lost(self) -> bool:
        return self._commits == _LOST

    @abstractmethod
    def sync(self) -> None:
        """Gives all ranks rank 0's state."""

    def reset(self) -> None:  # noqa: B027 (empty by default)
        """Called when the world has changed; a subclass may override it."""

    def join_progress(self) -> None:  # noqa: B027 (empty by default)
        """Joins what each rank alone has counted. All ranks call it when a world has formed anew.

        It comes after sync, or where all had the same state and there was no sync.
        """

    if TYPE_CHECKING:
        # What a subclass keeps by name, such as state.epoch, are attributes.
        def __getattr__(self, name: str) -> Any: ...


class ObjectState(State):
    """State in plain attributes. They are not copied, so change them by assignment only.

    Raises ValueError for the name of a method, or of what a state keeps itself. `sync` raises
    TypeError, which names the attribute, for what cannot be pickled.
    """

    def __init__(
        self, bcast_object: BroadcastObject, get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        before = set(vars(self))
        super().__init__(bcast_object, get_rank)
        check_names(type(self), kwargs, vars(self).keys() - before | {"_saved_state"})
        self._saved_state = kwargs
        self._set_attrs()

    def save(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        self._set_attrs()

    def sync(self) -> None:
        if self._saved_state:
            present = {name: getattr(self, name) for name in self._saved_state}
            try:
                self._saved_state = self._bcast_object(present)
            except (TypeError, ValueError, AttributeError, pickle.PickleError) as error:
                if (name := _first_unpicklable(present)) is None:
                    raise
                raise TypeError(
                    f"the state's {name} is {present[name]!r}; it must be something that can be "
                    f"pickled, since rank 0 sends it to the others: {error}"
                ) from error
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def check_names(kind: type, names: Iterable[str], taken: Collection[str] = ()) -> None:
    """Raises ValueError if a state of this kind cannot have attributes of these names."""
    for name in names:
        if callable(getattr(kind, name, None)) or name in taken:
            raise ValueError(
                f"a value of the state is called '{name}'; it must have another name, since "
                f"{kind.__name__} has a method or an attribute of that name"
            )


def _first_unpicklable(values: Mapping[str, Any]) -> str | None:
    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception:  # what it holds may raise anything
            return name
    return None


def _ranks() -> int:
    """Returns the number of ranks in the world; 0 when not initialized."""
    return perseus_core.size() if perseus_core.is_initialized() else 0


def _members(driver: driver_link.DriverLink | None) -> Hashable:
    """Returns what differs between two worlds if ranks have left or come."""
    return tuple(driver.world.workers) if driver and driver.world else _ranks()


def _place() -> tuple[int, ...]:
    core = perseus_core
    return (core.rank(), core.size(), core.local_rank(), core.local_size(), core.cross_rank())


def drain() -> bool:
    """Has this rank finish its step and leave its elastic job at the next commit or check.

    It returns at once, and any thread and any signal's handler may call it: a program with a
    handler of its own for SIGTERM, or one that a cloud tells of the end of its machine. The rank's
    slot is not used again, and the others go on. The function of `run` then raises SystemExit with
    code 0. If the rank comes to no commit within `--elastic-timeout`, it is killed, and at once if
    it has not come to that function yet.

    Returns False if nobody lets this rank go: before `init`, in a job that is not elastic, and when
    the whole job ends. A handler then ends the process as it does without Perseus.
    """
    return driver_link.drain()


#: A context that raises HorovodInternalError in place of a framework's own exceptions.
Errors: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]


def run_fn(func: Train, reset: Callable[[], None]) -> Train:
    """Returns `func(state, ...)` in a loop that restarts it whenever ranks are lost or join.

    After a HorovodInternalError the state is restored to the last commit, after a
    HostsUpdatedInterrupt it is kept. Any other exception is raised. `reset` leaves the job and
    joins it again. If ranks are lost during a reset, or while the state is synced, another reset
    follows.

    Each call begins with rank 0's state, and counts as a commit. The calls of all functions of a
    process are numbered. In an elastic job, a call returns None at once, without an operation, if
    the other ranks are in a later one: this process has joined later.

    In a new world, the state is synced if a rank needs it. In a job that is not elastic, each loss
    costs at least one rank, so after as many failures in a row as there were ranks, the last error
    is raised. If training fails six times in a row without a commit, although no rank has left or
    come, all ranks raise HorovodInternalError, which quotes the last error. In an elastic job the
    driver ends a job that does not come to anything else. A process for which an elastic job has no
    place any more exits with code 0. SIGTERM to a rank of an elastic job makes it leave at its next
    commit or check, unless the program handles that signal itself.

    The function returned raises TypeError if its first argument is no State, and RuntimeError if it
    is called within another one in an elastic job.
    """
    return run_fn_with_errors(func, reset, contextlib.nullcontext)


def run_fn_with_errors(func: Train, reset: Callable[[], None], errors: Errors) -> Train:
    """Does what run_fn does, with `errors` around `func`, `reset` and the sync of the state."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(state, "on_hosts_updated"):
            raise TypeError(
                f"the first argument of {getattr(func, '__name__', 'the function')} is {state!r}; "
                "it must be the State, such as a TorchState"
            )
        driver = driver_link.link()
        if driver is None:
            return _run(func, reset, errors, None, state, args, kwargs)

        def listener(change: driver_link.Change) -> None:
            state.on_hosts_updated(change.moment, change.what)

        with driver.calling():
            if driver.is_behind:
                return None
            driver.add_listener(listener)
            driver.begun()
            try:
                with driver.leave_on_signal.handling():
                    result = _run(func, reset, errors, driver, state, args, kwargs)
            finally:
                driver.remove_listener(listener)
            if driver.is_behind:
                return None
            driver.finished()
            return result

    return cast(Train, wrapper)


def _begin_call(state: State, driver: driver_link.DriverLink) -> None:
    """Keeps what the program has made of the state since the last call, as a commit does."""
    if driver.has_skipped:
        driver.has_skipped = False
        state._commits = 0  # its values are not those that the others have
        if not is_planned():
            state.on_reset()
    elif state._commits > 0:
        state.save()
        perseus_core.commit_residuals()
        state._commits += 1


def _run(
    func: Callable[..., Any],
    reset: Callable[[], None],
    errors: Errors,
    driver: driver_link.DriverLink | None,
    state: State,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Does what run_fn says. If the others are in a later call, it returns None."""
    # Reset callbacks also run if a rank that joins gets another place than the planned one.
    planned = _place() if is_planned() else None
    is_new_world, skips_sync = planned is not None, False
    losses_left = _ranks()
    ranks = _members(driver)
    begins, state._begins_call, state._failures = True, True, Failures()
    while True:
        try:
            with errors():
                if begins and driver is not None:
                    begins = False
                    _begin_call(state, driver)
                if is_new_world:
                    if driver is not None:
                        driver.commits = state._commits
                    reset()
                    if driver is not None and driver.is_behind:
                        return None
                    if planned is None or planned != _place():
                        state.on_reset()
                    planned = None
                    ranks = _members(driver)
                    state._failures.begins_again(ranks)
                if driver is None:
                    if not skips_sync:
                        state.sync()
                        perseus_core.commit_residuals()
                elif state.needs_sync():
                    state.sync_from_holders()
                    state.has_synced()
                    perseus_core.commit_residuals()
                # For a rank that has joined an elastic job, this is its first world.
                if is_new_world or driver is not None:
                    state.join_progress()
                losses_left = max(1, _ranks())
                return func(state, *args, **kwargs)
        except driver_link.DriverLostError:
            raise
        except HorovodInternalError as error:
            if losses_left <= 0:
                raise
            state._failures.note(error, state._commits, ranks)
            losses_left -= driver is None
            state.recover()
            perseus_core.restore_residuals()
            skips_sync = False
        except HostsUpdatedInterrupt as interrupt:
            skips_sync = interrupt.skip_sync
        is_new_world = True
