"""Which rank does what: a table of ranks, a row for each replica of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perseus_core.arguments import whole_number

__all__ = ["Mesh", "find_mesh"]

_NAMES = ("data", "pipeline")


@dataclass(frozen=True)
class Mesh:
    """rows[d][p] is the rank of the world with place p in the pipeline of replica d."""

    rows: tuple[tuple[int, ...], ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the numbers of replicas, and of ranks in the pipeline of each."""
        return len(self.rows), len(self.rows[0])

    def place(self, rank: int) -> tuple[int, int]:
        """Returns the replica of a rank, and its place in the pipeline."""
        return next(
            (replica, row.index(rank)) for replica, row in enumerate(self.rows) if rank in row
        )

    def columns(self) -> list[list[int]]:
        """Returns, for each place, the ranks that have the same stages."""
        return [sorted(column) for column in zip(*self.rows, strict=True)]


def find_mesh(mesh: Any, size: int) -> Mesh:
    """Returns the mesh of a world of `size` ranks.

    Args:
      mesh: (data, pipeline), with neighbouring ranks in one pipeline; or a DeviceMesh of PyTorch
        with dimensions of these names; or None for one pipeline over all ranks.

    Raises TypeError or ValueError if it is something else, or has not each rank once.
    """
    if mesh is None:
        return Mesh((tuple(range(size)),))
    names = getattr(mesh, "mesh_dim_names", None)
    if hasattr(mesh, "mesh_dim_names"):
        if tuple(names or ()) != _NAMES:
            raise ValueError(f"mesh has the dimensions {names}; they must be {_NAMES}")
        rows = tuple(map(tuple, mesh.mesh.tolist()))
        if sorted(rank for row in rows for rank in row) != list(range(size)):
            raise ValueError(f"mesh has the ranks {rows}; it must have each of the {size} once")
        return Mesh(rows)
    if not isinstance(mesh, (tuple, list)) or len(mesh) != 2:
        raise TypeError(f"mesh is {mesh!r}; it must be (data, pipeline), or a DeviceMesh")
    data, pipeline = (whole_number("mesh", part) for part in mesh)
    if data < 1 or pipeline < 1 or data * pipeline != size:
        raise ValueError(
            f"mesh is ({data}, {pipeline}); its product must be the number of ranks, {size}"
        )
    return Mesh(tuple(tuple(range(d * pipeline, (d + 1) * pipeline)) for d in range(data)))
