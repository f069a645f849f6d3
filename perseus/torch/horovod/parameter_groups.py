"""Groups of gradients that are reduced together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from perseus.common.gradient_arguments import checked_groups as groups_of
from perseus.common.util import split_list


def checked_groups(
    groups: int | Sequence[Iterable[torch.Tensor]] | None,
) -> int | list[list[torch.Tensor]] | None:
    """Checks DistributedOptimizer's argument; see perseus.common.gradient_arguments."""
    return groups_of(groups, lambda each: isinstance(each, torch.Tensor), id, "tensors")


#: What the user wants to be reduced together: the number of groups, their members, or nothing.
Groups = int | Sequence[Sequence[torch.Tensor]] | None


def groups_among(
    params: Sequence[torch.Tensor],
    names: Mapping[torch.Tensor, str],
    groups: Groups,
    order: Sequence[str] | None = None,
) -> list[list[torch.Tensor]]:
    """Returns the groups of these parameters. `order` is that of their names, by default sorted."""
    if isinstance(groups, int):
        in_order = sorted(names[param] for param in params) if order is None else order
        return int_groups(params, names, in_order, groups)
    return listed_groups(params, groups) if groups is not None else []


def int_groups(
    params: Sequence[torch.Tensor],
    names: Mapping[torch.Tensor, str],
    order: Sequence[str],
    count: int,
) -> list[list[torch.Tensor]]:
    """Splits the parameters into `count` groups, in `order`, which is the same on all ranks."""
    by_name = {names[param]: param for param in params}
    ordered = [by_name[name] for name in order if name in by_name]
    if len(ordered) != len(params):
        raise ValueError("the ranks' optimizers have different parameters")
    if not ordered:
        return []
    return [list(part) for part in split_list(ordered, min(count, len(ordered)))]


def listed_groups(
    params: Sequence[torch.Tensor], groups: Sequence[Sequence[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """Returns the user's groups, without parameters that the optimizer does not have."""
    ours = set(params)
    kept = [[param for param in group if param in ours] for group in groups]
    return [group for group in kept if group]
