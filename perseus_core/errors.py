"""The exceptions that the engine raises.

Scripts written for Horovod catch ``HorovodInternalError`` for a collective that failed, and
``ValueError`` for a call that was wrong before anything was sent. All classes here derive from one
of these two, except NonFiniteError.
"""

from __future__ import annotations

import re

__all__ = [
    "AbortedError",
    "HorovodInternalError",
    "MismatchError",
    "NonFiniteError",
    "NotInitializedError",
    "TimedOutError",
    "UnreachableError",
    "from_status",
    "is_reported",
    "mark_reported",
]


# How the engine names the rank without which the others cannot go on. What a rank has raised comes
# after that, and may speak of other ranks.
_GONE = re.compile(
    r"\blost rank (\d+)\b"
    r"|\brank (\d+)(?: \(launched as rank \d+\))? on \S+ "
    r"(?:has ended|has shut down|cannot go on|sent a malformed message)\b"
)


class HorovodInternalError(RuntimeError):
    """A collective failed. The subclass, if any, says how."""

    @property
    def rank(self) -> int | None:
        """The rank of the present world that is lost, has left, or cannot go on.

        None if no rank is to blame, or the error does not say which. The first one, if there are
        several.
        """
        found = _GONE.search(str(self))
        return None if found is None else int(found[1] or found[2])


class NotInitializedError(HorovodInternalError):
    """A collective was called before init or after shutdown."""


class AbortedError(HorovodInternalError):
    """A peer died or left, or this process shut down, while the operation was under way."""


class MismatchError(HorovodInternalError):
    """The ranks submitted different operations under one name. The job can go on."""


class TimedOutError(HorovodInternalError):
    """The other ranks did not arrive in time."""


class NonFiniteError(FloatingPointError):
    """A tensor to be reduced holds a NaN or infinity (with PERSEUS_ALLREDUCE_NANCHECK=raise).

    All ranks raise it for the same operation, and the job can go on. It is not a
    HorovodInternalError, because elastic training would then repeat the same step.
    """


class UnreachableError(HorovodInternalError):
    """A host or port could not be reached."""


# By perseus_status_t of perseus.h. Any other status becomes a plain HorovodInternalError.
_CLASSES: dict[int, type[Exception]] = {
    1: ValueError,  # INVALID_ARGUMENT
    2: NotInitializedError,
    3: AbortedError,
    4: MismatchError,
    5: ValueError,  # DUPLICATE_NAME
    6: TimedOutError,
    7: UnreachableError,
    12: NonFiniteError,
}


_REPORTED = "_perseus_reported"


def from_status(status: int, message: str) -> Exception:
    """Returns the exception for a status of perseus.h other than PERSEUS_OK."""
    error = _CLASSES.get(status, HorovodInternalError)(message)
    mark_reported(error)
    return error


def mark_reported(error: Exception) -> None:
    """Marks an error that the other ranks know of, or need not know of."""
    error.__dict__[_REPORTED] = True  # the class may forbid setattr


def is_reported(error: Exception) -> bool:
    """Returns whether the other ranks need not be told of this error.

    The engine itself has told them of every error that it raises.
    """
    return _REPORTED in error.__dict__
