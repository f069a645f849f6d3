"""Names under which the ranks match their operations.

Ranks match operations by set, kind and name. Unnamed ones are numbered in the order of the calls,
for each set and prefix apart, so ranks need to agree only on the order of unnamed calls of one kind
on one set. The numbers go round, because the engine remembers every name it has seen and agrees
on a known one by a single bit.

A call that fails here, before the engine has it, is a call all the same: it takes its number, and
the engine tells the other ranks, so that theirs fail with it and nobody waits or falls out of step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from perseus_core import _engine
from perseus_core.arguments import plain_text
from perseus_core.constants import OperationKind
from perseus_core.errors import HorovodInternalError, is_settled, settle

#: Unnamed operations of one prefix and set that may be in flight at once without waiting.
ROUND = 2048

_MAX_REASON = 300

#: Tells the other ranks, at once if none is given, that this rank's call of the name with an id has
#: failed, and why.
Tell = Callable[[int, str], object]

_lock = threading.Lock()
# Of a prefix and a set, unnamed calls so far.
_counters: dict[tuple[str, int], int] = {}
_last_handle: dict[tuple[str, int], int] = {}


def restart() -> None:
    """Forgets the counts. Called by init, for all ranks must begin with the same."""
    with _lock:
        _counters.clear()
        _last_handle.clear()


def all_have_joined() -> None:
    """Counts from 0 again: a rank that joined early made fewer calls than the others.

    What is still in flight is kept, so that its name is not taken before its end.
    """
    with _lock:
        _counters.clear()


def restart_set(process_set: int) -> None:
    """Forgets the counts of a set that is new: calls that came before it counted on no rank."""
    with _lock:
        for key in [key for key in _counters if key[1] == process_set]:
            del _counters[key]
        for key in [key for key in _last_handle if key[1] == process_set]:
            del _last_handle[key]


def submit(
    kind: OperationKind,
    prefix: str,
    name: str | None,
    process_set: int,
    keep: object,
    send: Callable[..., int],
    *arguments: Any,
    **options: Any,
) -> int:
    """Registers ``<prefix>.<name>`` and returns the handle that send(id, keep, ...) gives.

    `keep` owns the memory that the operation works on. Where `send` raises what the engine does not
    know of, the other ranks are told.
    """
    if name is not None:
        text = f"{prefix}.{plain_text('name', name)}"
    else:
        text = _next_unnamed(prefix, process_set)
    id = _engine.register(process_set, kind, text)
    try:
        handle = send(id, keep, *arguments, **options)
    except Exception as error:
        refuse(id, error)
        raise
    if name is None:
        with _lock:
            _last_handle[text, process_set] = handle
    return handle


def refuse(id: int, error: Exception) -> None:
    """Tells the other ranks, if need be, that this rank's call of a name, by its id, has failed.

    Without effect where they wait for no such call: before init,
    after shutdown, on a set that this rank is not in, or while an earlier operation of the name is
    in flight.
    """
    if not is_settled(error):
        _tell(id, error)
        settle(error)


def refuse_call(
    kind: OperationKind,
    prefix: str,
    name: str | None,
    process_set: int,
    error: Exception,
    tell: Tell | None = None,
) -> None:
    """Tells the other ranks that a call has failed before it came to submit.

    For what the steady path does, where `refusing` would take longer than the work within.
    """
    if not is_settled(error) and _engine.is_initialized():
        _tell_by_name(kind, prefix, name, process_set, error, tell)
        settle(error)


def refuse_whole(kind: OperationKind, text: str, process_set: int, error: Exception) -> None:
    """refuse_call for a name that is whole, without a prefix."""
    with contextlib.suppress(TypeError, ValueError):
        refuse(_engine.register(process_set, kind, text), error)


class refusing:
    """A context manager for what a call does before it submits, such as checks and conversions.

        with names.refusing(OperationKind.ALLREDUCE, "allreduce", name, process_set):
            source = as_input(array)
        names.submit(OperationKind.ALLREDUCE, "allreduce", name, process_set, ...)

    An exception counts as the call of that name, as if submit had been refused. It must not hold
    the submission itself, nor what comes after it.
    """

    __slots__ = ("_kind", "_name", "_prefix", "_process_set", "_tell")

    def __init__(
        self,
        kind: OperationKind,
        prefix: str,
        name: str | None,
        process_set: int,
        tell: Tell | None = None,
    ) -> None:
        self._kind = kind
        self._prefix = prefix
        self._name = name
        self._process_set = process_set
        self._tell = tell

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            refuse_call(self._kind, self._prefix, self._name, self._process_set, error, self._tell)


@contextlib.contextmanager
def refusing_all(
    kind: OperationKind,
    prefix: str,
    names: Iterable[str],
    process_set: int,
    tell: Tell | None = None,
) -> Iterator[None]:
    """refusing for a call that makes operations of several names."""
    try:
        yield
    except Exception as error:
        if not is_settled(error) and _engine.is_initialized():
            for name in names:
                _tell_by_name(kind, prefix, name, process_set, error, tell)
            settle(error)
        raise


def refuse_unnamed(
    kind: OperationKind, prefix: str, count: int, process_set: int, error: Exception
) -> None:
    """Counts unnamed calls that an error has kept from being made, and tells the other ranks."""
    if _engine.is_initialized():
        for _ in range(count):
            _tell_by_name(kind, prefix, None, process_set, error)
        settle(error)


def _tell_by_name(
    kind: OperationKind,
    prefix: str,
    name: str | None,
    process_set: int,
    error: Exception,
    tell: Tell | None = None,
) -> None:
    # A name or set that is wrong as well is one that no other rank can be waiting under.
    with contextlib.suppress(TypeError, ValueError):
        if name is not None:
            text = f"{prefix}.{plain_text('name', name)}"
        else:
            text = _next_unnamed(prefix, process_set)
        _tell(_engine.register(process_set, kind, text), error, tell)


def _tell(id: int, error: Exception, tell: Tell | None = None) -> None:
    # The caller's own error is what it must see, whatever becomes of this.
    with contextlib.suppress(Exception):
        (tell or _engine.refuse)(id, _reason(error))


def _next_unnamed(prefix: str, process_set: int) -> str:
    """The name of the next unnamed call."""
    key = prefix, process_set
    with _lock:
        count = _counters.get(key, 0)
        _counters[key] = count + 1
        text = f"{prefix}.noname.{count % ROUND}"
        before = _last_handle.pop((text, process_set), None)
    if before is not None and _engine.poll(before) == 0:
        # More than ROUND unnamed operations are in flight. Its own caller will see a failure.
        with contextlib.suppress(HorovodInternalError):
            _engine.wait(before)
    return text


def _reason(error: Exception) -> str:
    try:
        first_line = str(error).partition("\n")[0].strip()
    except Exception:  # the caller's own class cannot say it
        first_line = ""
    reason = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    text = reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 3] + "..."
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")
