"""Copies the parameters of stages from the ranks that have trained them to the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

import perseus.torch.horovod as hvd
from perseus.pipeline.layerwise.stage import Stage
from perseus.pipeline.layerwise.team import Team

__all__ = ["collect_parameters"]

_TAG = 2_040_001_042


def collect_parameters(
    stages: Sequence[Stage], owners: Sequence[int], team: Team, root: int | None
) -> None:
    """Writes the parameters into the stages of every rank, or of `root`."""
    if team.process_set is None or len(team.ranks) == 1:
        return
    if root is None:
        handles = [
            hvd.broadcast_async_(tensor, owner, f"layerwise.{name}", process_set=team.process_set)
            for name, tensor, owner in _named(stages, owners)
        ]
    else:
        handles = [
            hvd.irecv(tensor, owner, _TAG, team.process_set)
            if team.rank == root
            else hvd.isend(tensor, root, _TAG, team.process_set)
            for _, tensor, owner in _named(stages, owners)
            if owner != root and team.rank in (root, owner)
        ]
    for handle in handles:
        hvd.synchronize(handle)


def _named(
    stages: Sequence[Stage], owners: Sequence[int]
) -> Iterator[tuple[str, torch.Tensor, int]]:
    for number, (stage, owner) in enumerate(zip(stages, owners, strict=True)):
        for name, tensor in stage.parameters().items():
            yield f"{number}.{name}", tensor, owner
