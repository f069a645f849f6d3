"""Which gradients are reduced together, as users say it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perseus.common.callers import callers_level

__all__ = ["checked_groups", "given_groups"]


def checked_groups(
    groups: int | Sequence[Iterable[Any]] | None,
    is_member: Callable[[Any], bool],
    key: Callable[[Any], Any],
    noun: str,
) -> int | list[list[Any]] | None:
    """What the argument `groups` of optimizers and tapes says, with lists for its iterables.

    Args:
      groups: how many, or their members.
      is_member: whether something can be in a group.
      key: tells members apart.
      noun: what they are called: "tensors".

    Raises ValueError for what can be no groups.
    """
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups
    if not isinstance(groups, (list, tuple)):
        raise ValueError(f"groups must be a positive int or a list of lists of {noun}")
    for group in groups:
        # A tensor would be a list of its rows.
        if is_member(group) or not isinstance(group, Iterable):
            raise ValueError(
                f"groups must consist of lists of {noun}, and has a {type(group).__name__} for one"
            )
    listed = [list(group) for group in groups]
    seen = set()
    for member in itertools.chain.from_iterable(listed):
        if not is_member(member) or key(member) in seen:
            raise ValueError(f"groups must consist of lists of {noun}, each in one group only")
        seen.add(key(member))
    return listed


def given_groups(num_groups: int, groups: Any) -> Any:
    """What `groups` and its deprecated form say."""
    if num_groups == 0:
        return groups
    warnings.warn(
        "num_groups is deprecated; give groups instead",
        DeprecationWarning,
        stacklevel=callers_level(),
    )
    return num_groups if groups is None else groups
