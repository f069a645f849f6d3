"""Which gradients are reduced together, and in which order of priority."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch

from perseus.torch.horovod import handles
from perseus.torch.horovod.reductions import DenseReduction, GroupReduction

#: If there are MANY gradients of at most SMALL bytes, submitting, agreeing on and finishing them
#: takes longer than moving them. Then RUN of them are reduced as one operation.
MANY = 500
SMALL = 64 << 10
RUN = 32


class Bucket:
    """Parameters whose gradients are reduced as one operation; usually just one.

    Args:
      is_run: whether the bucket was formed because of RUN, not by the user's choice.
    """

    def __init__(
        self,
        params: list[torch.Tensor],
        members: list[str],
        name: str,
        priority: int,
        is_run: bool = False,
    ) -> None:
        self.params = params
        #: the parameters' names
        self.members = members
        self.name = name
        self.priority = priority
        self.is_run = is_run
        self.id = 0
        #: backward passes still to come, for each parameter
        self.passes_left: list[int] = []
        #: waits for the reduction and stores the result in the gradients; None if none is in flight
        self.finish: Callable[[], None] | None = None
        #: reduces dense gradients; set once the name is registered
        self.reduction: DenseReduction | GroupReduction
        #: the handle of the reduction in flight, if it has just one
        self.handle: int | None = None
        #: the gradients that are being reduced
        self.grads: list[torch.Tensor] = []
        #: whether the update of the parameters is deferred
        self.is_deferred = False

    def is_done(self) -> bool:
        """Returns whether finish would return at once; False if that is not known."""
        return self.handle is not None and handles.poll(self.handle)


def make_buckets(
    params: Sequence[torch.Tensor],
    names: Mapping[torch.Tensor, str],
    positions: Mapping[torch.Tensor, int],
    groups: Sequence[list[torch.Tensor]],
    makes_runs: bool,
) -> list[Bucket]:
    """Returns the buckets of parameters, in the order of priority.

    Args:
      positions: the order in which the forward pass needs parameters.
      groups: parameters that the user wants to be reduced together.
      makes_runs: whether many small gradients may be reduced some at a time, without `groups`.
    """
    runs = _runs(params, names) if makes_runs and not groups else []
    grouped = {param for group in (*groups, *runs) for param in group}
    members = [*groups, *runs, *([param] for param in params if param not in grouped)]
    buckets = []
    for group in members:
        first = min(positions[param] for param in group)
        prefix = "grouped_allreduce" if group[0] in grouped else "allreduce"
        name = f"{prefix}.{names[group[0]]}"
        named = [names[param] for param in group]
        is_run = bool(runs) and len(group) > 1
        buckets.append(Bucket(list(group), named, name, -first, is_run))
    return sorted(buckets, key=lambda bucket: -bucket.priority)


def _runs(
    params: Sequence[torch.Tensor], names: Mapping[torch.Tensor, str]
) -> list[list[torch.Tensor]]:
    """Returns groups of small parameters to reduce as one operation, if there are many of them.

    Ranks may have their parameters in different orders, so the order of the names decides which
    ones form a group.
    """
    small = [param for param in params if param.numel() * param.element_size() <= SMALL]
    if len(small) < MANY:
        return []
    small.sort(key=lambda param: _in_order(names[param]))
    runs: list[list[torch.Tensor]] = []
    for param in small:
        if not runs or len(runs[-1]) == RUN or _is_elsewhere(names, runs[-1], param):
            runs.append([])
        runs[-1].append(param)
    return runs


def _is_elsewhere(
    names: Mapping[torch.Tensor, str], run: Sequence[torch.Tensor], param: torch.Tensor
) -> bool:
    """Returns whether a run must or should end before a parameter.

    It should end at another part of the model, because gradients of the last layers come first.
    """
    if run[0].device != param.device:  # the tensors of an operation must be on one device
        return True
    return len(run) >= RUN // 4 and _part(names[run[-1]]) != _part(names[param])


def _part(name: str) -> str:
    """Returns the part of the model that a parameter is in: head for head.1.weight."""
    return name.partition(".")[0]


def _in_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Returns a sort key that puts layer.9 before layer.10, different for every name."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)], name
