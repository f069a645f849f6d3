"""How the examples end: with an error if what they show did not come true."""

from __future__ import annotations

import sys

import torch
from torch import nn

import perseus.torch.horovod as hvd


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        sys.exit(f"rank {hvd.rank()}: {otherwise}")


def require_equal_parameters(
    model: nn.Module, process_set: hvd.ProcessSet = hvd.global_process_set
) -> None:
    """All ranks of the set call this, and all notice if their models are not the same."""
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach()
    rows = hvd.allgather(parameters[None], name="parameters", process_set=process_set)
    require(torch.equal(rows, rows[:1].expand_as(rows)), "the ranks have different parameters")
