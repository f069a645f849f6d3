"""Checks of the arguments that say how optimizers and tapes reduce gradients."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perseus.common.reduce_ops import Average
from perseus.common.stacklevel import user_stacklevel
from perseus_core.arguments import real_number, whole_number

__all__ = ["checked_groups", "checked_passes", "checked_predivide", "given_groups"]


def checked_groups(
    groups: int | Sequence[Iterable[Any]] | None,
    is_member: Callable[[Any], bool],
    key: Callable[[Any], Any],
    noun: str,
) -> int | list[list[Any]] | None:
    """Returns the argument `groups` of optimizers and tapes, with its groups as lists.

    Args:
      groups: the number of groups, or the members of each.
      is_member: returns whether an object can be in a group.
      key: gives a value that is different for each member.
      noun: the members in messages, such as "tensors".

    Raises ValueError if the groups are not valid.
    """
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups
    if not isinstance(groups, (list, tuple)):
        raise ValueError(f"groups must be a positive int or a list of lists of {noun}")
    for group in groups:
        # Iterating over a tensor would give its rows.
        if is_member(group) or not isinstance(group, Iterable):
            raise ValueError(
                f"groups must consist of lists of {noun}, but one is of type {type(group).__name__}"
            )
    listed = [list(group) for group in groups]
    seen = set()
    for member in itertools.chain.from_iterable(listed):
        if not is_member(member) or key(member) in seen:
            raise ValueError(f"groups must consist of lists of {noun}, each in one group only")
        seen.add(key(member))
    return listed


def given_groups(num_groups: int, groups: Any) -> Any:
    """Returns `groups`, or its deprecated form `num_groups` with a warning."""
    if num_groups == 0:
        return groups
    warnings.warn(
        "num_groups is deprecated; give groups instead",
        DeprecationWarning,
        stacklevel=user_stacklevel(),
    )
    return num_groups if groups is None else groups


def checked_predivide(gradient_predivide_factor: float, op: int) -> float:
    """Returns the factor; ValueError if it is 0 or not finite, or if `op` is not Average."""
    factor = real_number("gradient_predivide_factor", gradient_predivide_factor)
    if factor == 0.0 or not math.isfinite(factor):
        raise ValueError(f"gradient_predivide_factor is {factor}; it must be finite and not 0")
    if factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    return factor


def checked_passes(backward_passes_per_step: int) -> int:
    """Returns the number; raises ValueError if it is not above 0."""
    passes = whole_number("backward_passes_per_step", backward_passes_per_step)
    if passes <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    return passes
