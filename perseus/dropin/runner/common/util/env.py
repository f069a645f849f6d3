"""Reads facts about the job from environment variables."""

from __future__ import annotations

import os

from perseus.run.environment import exported

__all__ = ["get_env_rank_and_size", "is_exportable", "is_kubeflow_mpi"]

_RANKS_AND_SIZES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Returns rank and size as the launcher has set them, before init; 0 and 1 without one."""
    for rank, size in _RANKS_AND_SIZES:
        if os.environ.get(rank) and os.environ.get(size):
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def is_exportable(v: str) -> bool:
    """Returns whether the variable makes sense on another host."""
    return bool(exported({v: ""}))


def is_kubeflow_mpi() -> bool:
    """Returns whether this is a pod of Kubeflow's MPI operator, whose mpirun uses kubexec.sh."""
    shell = os.environ.get("OMPI_MCA_plm_rsh_agent", "")  # noqa: SIM112 (Open MPI's name)
    return shell.endswith("kubexec.sh")
