"""The place that the launcher has planned for a process which joins an elastic job later.

Ranks that train stop for a new one as soon as it asks the driver for a world. One that did so at
the start of its program would keep them waiting while it loads its data and builds its model. So it
takes the place that it would have if nothing else changed, and asks once it is about to train.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from perseus_core import driver_link, processors

__all__ = ["PlannedPlace", "planned_place"]

#: How many worlds the job had when this process was started; the launcher sets it.
_MEETING = "PERSEUS_ELASTIC_MEETING"


@dataclass(frozen=True)
class PlannedPlace:
    """The fields are what the functions of these names in perseus_core return."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool
    processor_share: int
    process: int = field(default_factory=os.getpid)  # a forked child has no place of its own


def planned_place() -> PlannedPlace | None:
    """Returns the place of a process that joins a job in the background; None for all others.

    Raises ValueError in a process that a rank of an elastic job has started.
    """
    if os.environ.get(_MEETING, "0") == "0" or driver_link.joins_at_once():
        return None
    if driver_link.link() is None:
        return None
    size, local_size, cross_size = (
        int(os.environ[f"PERSEUS_{name}"]) for name in ("SIZE", "LOCAL_SIZE", "CROSS_SIZE")
    )
    return PlannedPlace(
        rank=int(os.environ["PERSEUS_RANK"]),
        size=size,
        local_rank=int(os.environ["PERSEUS_LOCAL_RANK"]),
        local_size=local_size,
        cross_rank=int(os.environ["PERSEUS_CROSS_RANK"]),
        cross_size=cross_size,
        is_homogeneous=local_size * cross_size == size,
        processor_share=max(1, processors.usable() // local_size),
    )
