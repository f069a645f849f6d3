"""What the engine raises.

Horovod's scripts catch ``HorovodInternalError`` for a collective that failed and ``ValueError``
for a call that was wrong before anything was sent, so these are the two roots here.
"""

from __future__ import annotations

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


class HorovodInternalError(RuntimeError):
    """A collective failed. The subclass, if any, says in which way."""


class NotInitializedError(HorovodInternalError):
    """A collective was called before init or after shutdown."""


class AbortedError(HorovodInternalError):
    """A peer died or left, or this process shut down, while the operation was under way."""


class MismatchError(HorovodInternalError):
    """The ranks described one name differently; the job can go on."""


class TimedOutError(HorovodInternalError):
    """The other ranks did not come in time."""


class NonFiniteError(FloatingPointError):
    """A NaN or infinity was found in what is reduced (PERSEUS_ALLREDUCE_NANCHECK is raise).

    All ranks raise it for the same operation, and the job can go on. Not a HorovodInternalError,
    after which elastic training would do the same again.
    """


class UnreachableError(HorovodInternalError):
    """A host or port could not be reached."""


# perseus_status_t, as in perseus.h; what is not here is a plain HorovodInternalError.
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
    """The exception for a status of perseus.h other than PERSEUS_OK."""
    error = _CLASSES.get(status, HorovodInternalError)(message)
    mark_reported(error)
    return error


def mark_reported(error: Exception) -> None:
    """Marks that the other ranks know of this error, or have nothing to learn from it."""
    error.__dict__[_REPORTED] = True  # not setattr, which the error's class may forbid


def is_reported(error: Exception) -> bool:
    """Whether the other ranks need not be told of this error. What the engine raises, it told."""
    return _REPORTED in error.__dict__
