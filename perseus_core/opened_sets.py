"""Process sets that their members open among themselves, without the other ranks of the world.

The sets of `perseus_core.add_process_set` are agreed on by all ranks, and get their ids from the
engine. The members of these agree on a number by other means, such as a store of the launcher, and
each opens the set by itself, without waiting for the others. Operations then run in it as in any
other set. Any thread may call these functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from perseus_core import _engine, names

__all__ = ["FIRST_OF_STATES", "close_set", "is_opened", "open_set"]

#: Numbers from here on are those of sets that pass the state of elastic jobs on; the sets of
#: torch.distributed have those below.
FIRST_OF_STATES = 1 << 22


def open_set(number: int, ranks: Sequence[int]) -> int:
    """Opens the set with this number and gives its process-set id; returns at once.

    Args:
      number: from 0 on, the same on all members, and never used for another set in this job.
      ranks: the set's ranks of the world, the same on all members.

    Raises ValueError for a number or ranks that cannot form a set, NotInitializedError before init.
    """
    process_set = _engine.FIRST_OPENED_SET + number
    _engine.open_process_set(process_set, ranks)
    names.restart_set(process_set)
    return process_set


def close_set(process_set: int) -> None:
    """Closes the set on this rank and ends it on the other members, which must close it, too.

    Operations that all members have agreed on still complete. All other operations of the set fail:
    with ValueError on this rank, with AbortedError on the others. If this rank is in a round of
    agreement, the call waits until that round has ended, but for at most 1 s. It does not matter
    whether other members have closed the set, have left or are lost.
    """
    _engine.close_process_set(process_set)


def is_opened(process_set: int) -> bool:
    """Returns whether the id is that of such a set, open or closed."""
    return process_set >= _engine.FIRST_OPENED_SET
