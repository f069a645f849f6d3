"""Calls that fail on this rank before they are submitted to the engine.

Such a call still counts as a call: it takes its number if it is unnamed, and the engine tells the
other ranks. Their calls of the same name fail as well, so no rank waits or falls out of step.

Any thread may use these functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from perseus_core import _engine
from perseus_core.constants import OperationKind
from perseus_core.errors import is_reported, mark_reported
from perseus_core.names import full_name

__all__ = [
    "Tell",
    "refuse",
    "refuse_call",
    "refuse_message",
    "refuse_unnamed",
    "refuse_whole",
    "refusing",
    "refusing_all",
]

_MAX_REASON = 300

#: Tells the other ranks that this rank's call of a name has failed; called with the id of the name
#: and the reason. By default the engine tells them at once.
Tell = Callable[[int, str], object]


def refuse(id: int, error: Exception) -> None:
    """Tells the other ranks that this rank's call of a name has failed, unless they know already.

    Has no effect if no rank waits for such a call: before init, after shutdown, on a set that this
    rank is not in, or while an earlier operation of the name is in flight.

    Args:
      id: of the name, from perseus_core.engine.register.
    """
    if not is_reported(error):
        _tell(id, error)
        mark_reported(error)


def refuse_call(
    kind: OperationKind,
    prefix: str,
    name: str | None,
    process_set: int,
    error: Exception,
    tell: Tell | None = None,
) -> None:
    """Tells the other ranks that a call has failed before it was submitted.

    For the steady path, where the context manager `refusing` would take longer than its body.
    """
    if not is_reported(error) and _engine.is_initialized():
        _tell_by_name(kind, prefix, name, process_set, error, tell)
        mark_reported(error)


def refuse_whole(kind: OperationKind, text: str, process_set: int, error: Exception) -> None:
    """Does what refuse_call does for a name that has no prefix."""
    with contextlib.suppress(TypeError, ValueError):
        refuse(_engine.register(process_set, kind, text), error)


class refusing:
    """A context manager for the checks and conversions of a call before it submits.

        with refusals.refusing(OperationKind.ALLREDUCE, "allreduce", name, process_set):
            source = as_input(array)
        submission.submit(OperationKind.ALLREDUCE, "allreduce", name, process_set, ...)

    An exception within it counts as the call of that name, as if the submission had been refused.
    The submission itself, and what follows it, must be outside.
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
    """Does what `refusing` does for a call that starts operations of several names."""
    try:
        yield
    except Exception as error:
        if not is_reported(error) and _engine.is_initialized():
            for name in names:
                _tell_by_name(kind, prefix, name, process_set, error, tell)
            mark_reported(error)
        raise


def refuse_unnamed(
    kind: OperationKind, prefix: str, count: int, process_set: int, error: Exception
) -> None:
    """Counts `count` unnamed calls that an error has prevented, and tells the other ranks."""
    if _engine.is_initialized():
        for _ in range(count):
            _tell_by_name(kind, prefix, None, process_set, error)
        mark_reported(error)


def _tell_by_name(
    kind: OperationKind,
    prefix: str,
    name: str | None,
    process_set: int,
    error: Exception,
    tell: Tell | None = None,
) -> None:
    # If the name or set is wrong, too, no other rank can be waiting for a call of it.
    with contextlib.suppress(TypeError, ValueError):
        text = full_name(prefix, name, process_set)
        _tell(_engine.register(process_set, kind, text), error, tell)


def _tell(id: int, error: Exception, tell: Tell | None = None) -> None:
    # The caller must see its own error, even if this fails.
    with contextlib.suppress(Exception):
        (tell or _engine.refuse)(id, _reason(error))


def _reason(error: BaseException) -> str:
    try:
        first_line = str(error).partition("\n")[0].strip()
    except Exception:  # the exception's class cannot be shown
        first_line = ""
    reason = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    text = reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 3] + "..."
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def refuse_message(
    is_send: bool, process_set: int, peer: int, tag: int, error: BaseException
) -> None:
    """Has the other end of a message fail, as this rank's call has before it was submitted."""
    # If the ends themselves are wrong, nobody waits for this one.
    with contextlib.suppress(Exception):
        _engine.refuse_message(is_send, process_set, peer, tag, _reason(error))
