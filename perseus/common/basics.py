"""Horovod's functions about the process and the build, the same in every adapter."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import perseus_core
from perseus.common import process_sets as sets
from perseus.common import reduce_ops
from perseus.common.communicators import is_communicator
from perseus.common.communicators import launched_ranks as launched_ranks_of
from perseus.common.process_sets import ProcessSet
from perseus_core.process import launched_ranks, mpi_thread_level

_MPI_THREAD_MULTIPLE = 3


class Basics:
    """One per adapter; holds no state of its own."""

    Average = reduce_ops.Average
    Sum = reduce_ops.Sum
    Adasum = reduce_ops.Adasum
    Min = reduce_ops.Min
    Max = reduce_ops.Max
    Product = reduce_ops.Product

    def init(
        self, comm: Any = None, process_sets: str | Sequence[ProcessSet] | None = None
    ) -> None:
        """Joins the other processes of the job.

        A second call does nothing, and warns if it asks for something else than the first. Where a
        set is refused, the process leaves the job again, so that init can be called once more.

        Args:
          comm: ranks that form the world, or an mpi4py communicator of them; None or an empty list
            for all. A rank left out gets a world of its own, and so does one in MPI.COMM_NULL.
          process_sets: sets to register, the same on all ranks; "dynamic" lets them be added and
            removed later. Where `comm` is an mpi4py communicator, sets may be made of others, the
            parts of a split, say: each rank gives its own part.

        Raises ValueError for what is wrong with the arguments or the settings, NotImplementedError
        for sets made of communicators where `comm` is none.
        """
        ranks = _ranks_of(comm)
        dynamic, fixed = _sets_of(process_sets)
        sets.require_communicator(fixed, comm)
        if self.is_initialized():
            sets.setup(())  # perseus_core.init may have been called, without us
            ignored = _ignored(ranks, dynamic, fixed)
            if ignored:
                warnings.warn(
                    f"init was called again, with {ignored}; this is ignored until shutdown",
                    stacklevel=3,
                )
            return
        if dynamic:
            os.environ["PERSEUS_DYNAMIC_PROCESS_SETS"] = "1"
        perseus_core.init(ranks)
        sets.forget()
        try:
            sets.setup(fixed, comm)
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self) -> None:
        """Leaves the job. Operations under way fail, here and on the others. init may follow."""
        perseus_core.shutdown()
        sets.forget()

    def is_initialized(self) -> bool:
        return perseus_core.is_initialized()

    def rank(self) -> int:
        return perseus_core.rank()

    def size(self) -> int:
        return perseus_core.size()

    def local_rank(self) -> int:
        return perseus_core.local_rank()

    def local_size(self) -> int:
        return perseus_core.local_size()

    def cross_rank(self) -> int:
        return perseus_core.cross_rank()

    def cross_size(self) -> int:
        return perseus_core.cross_size()

    def is_homogeneous(self) -> bool:
        return perseus_core.is_homogeneous()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Writes a Chrome-trace timeline to `file_path` from now on."""
        _require_init()
        perseus_core.start_timeline(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        _require_init()
        perseus_core.stop_timeline()

    def mpi_threads_supported(self) -> bool:
        """Whether MPI was initialised with MPI_THREAD_MULTIPLE.

        Raises ValueError where the ranks met without MPI.
        """
        _require_init()
        level = mpi_thread_level()
        if level is None:
            raise ValueError(
                "MPI is not enabled: the ranks of this job met without it; start them with mpirun "
                "or perseusrun --mpi"
            )
        return level == _MPI_THREAD_MULTIPLE

    def mpi_enabled(self) -> bool:
        """Whether the ranks met by MPI, as in Horovod's controller, whatever moves the data."""
        return mpi_thread_level() is not None

    def mpi_built(self) -> bool:
        """Nothing is compiled against MPI: whatever library is there can be used."""
        return True

    def gloo_enabled(self) -> bool:
        """Whether the ranks met by the built-in rendezvous, which stands for Horovod's Gloo."""
        return not self.mpi_enabled()

    def gloo_built(self) -> bool:
        return True

    def nccl_built(self) -> int:
        """NCCL's version code, 22105 for 2.21.5; 0 where there is none that can be used here.

        Nothing is compiled against it: it is opened as this is asked, if it has not been.
        """
        return perseus_core.gpu_support().nccl

    def cuda_built(self) -> bool:
        """Whether CUDA's driver can be used here. CUDA itself is not started."""
        return perseus_core.gpu_support().cuda_driver > 0

    def rocm_built(self) -> bool:
        return False

    def ddl_built(self) -> bool:
        return False

    def ccl_built(self) -> bool:
        return False

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return perseus_core.process_sets()


class HorovodBasics(Basics):
    """Basics as Horovod's adapters make it."""

    def __init__(self, pkg_path: str, *args: str) -> None:
        """The arguments say where Horovod has its libraries; ours need no telling."""


def _require_init() -> None:
    perseus_core.rank()


def _ignored(ranks: list[int] | None, dynamic: bool, fixed: Sequence[ProcessSet]) -> str:
    """What init asks for that is not so, in words."""
    ignored = []
    if ranks is not None and ranks != launched_ranks():
        ignored.append(f"comm={ranks} (the world is {launched_ranks()})")
    if dynamic and not sets.are_dynamic():
        ignored.append('process_sets="dynamic"')
    missing = [process_set.ranks for process_set in fixed if process_set.process_set_id is None]
    if missing:
        ignored.append(f"process_sets={missing}")
    return " and ".join(ignored)


def _sets_of(process_sets: str | Sequence[ProcessSet] | None) -> tuple[bool, list[ProcessSet]]:
    """Whether the sets are dynamic, and those that are made at once."""
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'process_sets is {process_sets!r}; it takes a list of ProcessSet, or "dynamic"'
            )
        return True, []
    fixed = [] if process_sets is None else list(process_sets)
    for process_set in fixed:
        if not isinstance(process_set, ProcessSet):
            raise ValueError(f"process_sets holds {process_set!r}, which is no ProcessSet")
    return False, fixed


def _ranks_of(comm: Any) -> list[int] | None:
    """The launched ranks that `comm` stands for; None for all."""
    if is_communicator(comm):
        return launched_ranks_of(comm)
    if comm is None:
        return None
    if isinstance(comm, (str, bytes)) or not isinstance(comm, Iterable):
        raise ValueError(
            f"comm is {type(comm).__name__}; it takes a list of ranks or an mpi4py communicator"
        )
    return list(comm) or None
