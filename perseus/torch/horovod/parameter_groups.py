"""Which gradients are reduced together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


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
    seen: set[torch.Tensor] = set()
    for group in groups:
        for param in group:
            if not isinstance(param, torch.Tensor) or param in seen:
                raise ValueError("groups must consist of lists of tensors, each in one group only")
            seen.add(param)
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
