"""Horovod's functions about the process and the build, which are the same in every adapter."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import perseus_core
from perseus.common import process_sets as sets
from perseus.common import reduce_ops
from perseus.common.communicators import is_communicator
from perseus.common.communicators import launched_ranks as launched_ranks_of
from perseus.common.process_sets import ProcessSet
from perseus.common.threads import share_processors
from perseus_core import driver_link
from perseus_core.process import launched_ranks, mpi_thread_level, plan_to_join

_MPI_THREAD_MULTIPLE = 3


class Basics:
    """The functions as methods. Objects hold no state."""

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

        A process that joins an elastic job which trains already only takes the place that is
        planned for it, unless it asks for process sets. It joins with the training function of
        `elastic.run`, so that the others need not wait for it before.

        A second call does nothing, and warns if its arguments differ from those of the first. If a
        process set is refused, the process leaves the job again, so that init can be called once
        more. A duplicate is an error as well, but then the process is in the job, and all other
        sets are registered.

        Args:
          comm: the ranks that form the world, or an mpi4py communicator of them; None or an empty
            list for all. A rank that is not among them gets a world of its own, and so does a rank
            with MPI.COMM_NULL.
          process_sets: sets to register, the same on all ranks; "dynamic" allows sets to be added
            and removed later. If `comm` is an mpi4py communicator, sets may also be made of
            communicators, such as the parts of a split: each rank passes its own part. In
            elastic training, they are made anew in each world.

        Raises ValueError for wrong arguments or settings, NotImplementedError for sets made of
        communicators if `comm` is not one.
        """
        ranks = _ranks_of(comm)
        dynamic, fixed = _sets_of(process_sets)
        fixed = fixed or sets.carried() or []
        sets.require_communicator(fixed, comm)
        if self.is_initialized():
            sets.refresh_global()  # perseus_core.init may have been called directly
            ignored = _ignored(ranks, dynamic, fixed)
            if ignored:
                warnings.warn(
                    f"init was called again, with {ignored}; this is ignored until shutdown",
                    stacklevel=3,
                )
            return
        sets.choose_dynamic(dynamic, is_fixed=bool(process_sets) and not dynamic)
        if ranks is not None or fixed or not plan_to_join():
            perseus_core.init(ranks)
        sets.forget()
        try:
            refused = sets.setup(fixed, comm, is_new_world=_is_new_world())
        except BaseException:
            self.shutdown()
            raise
        share_processors()
        if refused is not None:
            raise refused

    def shutdown(self) -> None:
        """Leaves the job. Operations in flight fail, on all ranks. init may be called again."""
        perseus_core.shutdown()
        sets.forget()

    def is_initialized(self) -> bool:
        """Returns whether the process is in a job: between init and shutdown."""
        return perseus_core.is_initialized()

    def rank(self) -> int:
        """Returns this process's rank. It and the next five raise ValueError before init."""
        return perseus_core.rank()

    def size(self) -> int:
        """Returns the number of ranks."""
        return perseus_core.size()

    def local_rank(self) -> int:
        """Returns the rank among the ranks of this host."""
        return perseus_core.local_rank()

    def local_size(self) -> int:
        """Returns the number of ranks on this host."""
        return perseus_core.local_size()

    def cross_rank(self) -> int:
        """Returns the rank among the ranks with the same local rank, one on each host."""
        return perseus_core.cross_rank()

    def cross_size(self) -> int:
        """Returns the number of ranks with the same local rank."""
        return perseus_core.cross_size()

    def is_homogeneous(self) -> bool:
        """Returns whether every host has the same number of ranks."""
        return perseus_core.is_homogeneous()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Starts to write a Chrome-trace timeline to `file_path`."""
        _require_init()
        perseus_core.start_timeline(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Ends the timeline. The file is complete when this returns."""
        _require_init()
        perseus_core.stop_timeline()

    def mpi_threads_supported(self) -> bool:
        """Returns whether MPI was initialized with MPI_THREAD_MULTIPLE.

        Raises ValueError if the ranks met without MPI.
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
        """Returns whether the ranks met by MPI, whatever moves the data."""
        return mpi_thread_level() is not None

    def mpi_built(self) -> bool:
        """Returns True: nothing is compiled against MPI, so any installed MPI can be used."""
        return True

    def gloo_enabled(self) -> bool:
        """Returns whether the ranks met by the built-in rendezvous, in place of Horovod's Gloo."""
        return not self.mpi_enabled()

    def gloo_built(self) -> bool:
        """Returns True: the rendezvous is always built in."""
        return True

    def nccl_built(self) -> int:
        """Returns the version code of NCCL, such as 22105 for 2.21.5; 0 if it cannot be used here.

        Nothing is compiled against NCCL. The call opens the library unless it is open already.
        """
        return perseus_core.gpu_support().nccl

    def cuda_built(self) -> bool:
        """Returns whether CUDA's driver can be used here, without initializing CUDA."""
        return perseus_core.gpu_support().cuda_driver > 0

    def rocm_built(self) -> bool:
        """Returns False: tensors on AMD's GPUs are not supported."""
        return False

    def ddl_built(self) -> bool:
        """Returns False: IBM's DDL is not supported."""
        return False

    def ccl_built(self) -> bool:
        """Returns False: oneCCL is not used."""
        return False

    def sycl_built(self) -> bool:
        """Returns False: Intel's GPUs are not supported.

        Horovod 0.28.1 lacks this. The examples in its repository are newer, and call it.
        """
        return False

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return perseus_core.process_sets()


class HorovodBasics(Basics):
    """Basics, with the constructor that Horovod's adapters call."""

    def __init__(self, pkg_path: str, *args: str) -> None:
        """Ignores the arguments, which tell where Horovod has its libraries."""


def _require_init() -> None:
    perseus_core.rank()


def _is_new_world() -> bool:
    """Returns whether this world follows another one of the same job."""
    driver = driver_link.link()
    has_joined_later = driver is not None and driver.world is not None and driver.world.meeting > 1
    return has_joined_later or sets.carried() is not None


def _ignored(ranks: list[int] | None, dynamic: bool, fixed: Sequence[ProcessSet]) -> str:
    """Describes which arguments of a second init differ from the present state."""
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
    """Returns whether process sets are dynamic, and the sets to register at once."""
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f'process_sets is {process_sets!r}; it takes a list of ProcessSet, or "dynamic"'
            )
        return True, []
    fixed = [] if process_sets is None else list(process_sets)
    for process_set in fixed:
        if not isinstance(process_set, ProcessSet):
            raise ValueError(f"process_sets holds {process_set!r}, which is not a ProcessSet")
    return False, fixed


def _ranks_of(comm: Any) -> list[int] | None:
    """Returns the launched ranks that `comm` stands for; None for all."""
    if is_communicator(comm):
        return launched_ranks_of(comm)
    if comm is None:
        return None
    if isinstance(comm, (str, bytes)) or not isinstance(comm, Iterable):
        raise ValueError(
            f"comm is {type(comm).__name__}; it takes a list of ranks or an mpi4py communicator"
        )
    return list(comm) or None
