"""Announcements: a number that one rank tells, and that all ranks hear of at the same operation."""

from __future__ import annotations

import operator

from perseus_core import _engine

__all__ = ["announce", "announced"]

_UINT64 = range(2**64)


def announce(number: int) -> None:
    """Announces a number to all ranks, such as that of a change to the job. Any rank may, any time.

    All ranks learn of it at the same operation, with which it travels: each operation on all ranks
    carries the highest number that a rank had announced when the ranks agreed on that operation.
    One that this rank submits after this call carries this number, or a higher one. The call does
    not block, sends nothing by itself and wakes nobody. A number that is not above all that this
    rank has announced since init has no effect.

    Raises NotInitializedError when not initialized, TypeError or ValueError if the number is not a
    whole number from 0 to 2**64 - 1.
    """
    try:
        whole = operator.index(number)
    except TypeError:
        raise TypeError(f"the announced number is {number!r}; it must be a whole number") from None
    if whole not in _UINT64:
        raise ValueError(f"the announced number is {whole}; it must be from 0 to 2**64 - 1")
    _engine.announce(whole)


def announced() -> int:
    """Returns the highest number that operations which have succeeded here since init carried.

    It is 0 if they carried none, or when not initialized. All ranks read the same number at the
    same point of their programs, provided that no operation is outstanding there. Operations of
    process sets other than the world do not count.
    """
    return _engine.announced()
