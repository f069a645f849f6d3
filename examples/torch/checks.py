"""Checks at the end of the examples, which fail if the example did not work."""

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
    """All ranks of the set call this, and all of them raise if their models differ."""
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach()
    rows = hvd.allgather(parameters[None], name="parameters", process_set=process_set)
    require(torch.equal(rows, rows[:1].expand_as(rows)), "the ranks have different parameters")
