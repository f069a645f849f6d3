"""Which gradients are reduced together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch


def checked_groups(
    groups: int | Sequence[Iterable[torch.Tensor]] | None,
) -> int | list[list[torch.Tensor]] | None:
    """What DistributedOptimizer's argument says, with lists for its iterables.

    Raises ValueError for what can be no groups.
    """
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups
    if not isinstance(groups, (list, tuple)):
        raise ValueError("groups must be a positive int or a list of lists of tensors")
    for group in groups:
        # A tensor would be a list of its rows.
        if isinstance(group, torch.Tensor) or not isinstance(group, Iterable):
            raise ValueError(
                f"groups must consist of lists of tensors, and has a {type(group).__name__} for one"
            )
    listed = [list(group) for group in groups]
    seen: set[torch.Tensor] = set()
    for param in itertools.chain.from_iterable(listed):
        if not isinstance(param, torch.Tensor) or param in seen:
            raise ValueError("groups must consist of lists of tensors, each in one group only")
        seen.add(param)
    return listed


def int_groups(
    params: Sequence[torch.Tensor],
    names: Mapping[torch.Tensor, str],
    order: Sequence[str],
    count: int,
) -> list[list[torch.Tensor]]:
    """The parameters in `order`, the same on all ranks, in `count` consecutive groups."""
    by_name = {names[param]: param for param in params}
    ordered = [by_name[name] for name in order if name in by_name]
    if len(ordered) != len(params):
        raise ValueError("the ranks' optimizers have different parameters")
    return split_list(ordered, count)


def listed_groups(
    params: Sequence[torch.Tensor], groups: Sequence[Sequence[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """The user's groups, without what the optimizer does not have."""
    ours = set(params)
    kept = [[param for param in group if param in ours] for group in groups]
    return [group for group in kept if group]


def split_list(items: list[torch.Tensor], count: int) -> list[list[torch.Tensor]]:
    """`items` in at most `count` consecutive parts of nearly equal length, none empty."""
    count = min(count, len(items))
    shortest, longer = divmod(len(items), count) if count else (0, 0)
    parts = []
    start = 0
    for i in range(count):
        end = start + shortest + (i < longer)
        parts.append(items[start:end])
        start = end
    return parts
