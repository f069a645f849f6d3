"""The ranks in mpi4py's communicators, which init and ProcessSet accept."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from perseus_core import process

__all__ = ["is_communicator", "launched_ranks", "ranks_within"]


def is_communicator(value: Any) -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(value, mpi.Comm)


def launched_ranks(comm: Any) -> list[int]:
    """Returns the ranks of MPI.COMM_WORLD in a communicator, in its order.

    A process with COMM_NULL is alone, like a rank that is not in the list of the others. Raises
    ValueError for a communicator that cannot be the world of this job.
    """
    mpi = sys.modules["mpi4py.MPI"]
    if not mpi.Is_initialized() or mpi.Is_finalized():
        raise ValueError("comm cannot be used: MPI is not initialized, or already finalized")
    world = mpi.COMM_WORLD
    _require_launched_by_mpi(world.Get_size())
    if comm == mpi.COMM_NULL:
        return [world.Get_rank()]
    ranks = ranks_within(comm, world)
    if mpi.UNDEFINED in ranks:
        raise ValueError("comm has processes that are not in MPI.COMM_WORLD, such as spawned ones")
    return ranks


def ranks_within(comm: Any, world: Any) -> list[int]:
    """Returns the ranks of a communicator's processes in another; MPI.UNDEFINED if not in it."""
    mpi = sys.modules["mpi4py.MPI"]
    if comm == mpi.COMM_NULL:
        return []
    if comm.Is_inter():
        raise ValueError("comm is an intercommunicator; it takes one with a single group")
    group = comm.Get_group()
    return list(mpi.Group.Translate_ranks(group, range(comm.Get_size()), world.Get_group()))


def _require_launched_by_mpi(size: int) -> None:
    """Raises ValueError if MPI did not launch the job: it then sees a world of one process."""
    with contextlib.suppress(ValueError):  # init reports it
        _, launched_size, variable = process.launched_as()
        if variable and launched_size == size:
            return
    # Set by perseusrun without --mpi, torchrun and srun.
    names = ["PERSEUS_SIZE", *(("WORLD_SIZE", "SLURM_STEP_NUM_TASKS") if size == 1 else ())]
    for name in names:
        launched = os.environ.get(name, "")
        if launched.isdecimal() and int(launched) != size:
            raise ValueError(
                f"comm is an mpi4py communicator, and MPI knows of {size} of the {launched} "
                f"processes of this job ({name}); start it with mpirun or perseusrun --mpi, or "
                "give init a list of ranks"
            )
