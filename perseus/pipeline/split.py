"""The stages of a pipeline, from a list of modules or from one that is cut."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import torch

from perseus_core.arguments import whole_number

__all__ = ["cut_sequential", "found_starts", "made"]


def found_starts(module: torch.nn.Sequential, split: Sequence[Any]) -> list[int]:
    """Returns the first child of each stage, from the children at which stages after the first
    begin: their names or numbers, in order. Raises ValueError for others."""
    names = [name for name, _ in module.named_children()]
    starts = [0]
    for point in split:
        at = names.index(point) if point in names else None
        if at is None and not isinstance(point, str):
            at = whole_number("split point", point)
        if at is None or not 0 <= at < len(names):
            raise ValueError(
                f"split point {point!r} is no child of the module; its children are "
                f"{', '.join(names)}"
            )
        if at <= starts[-1]:
            raise ValueError(
                f"split is {list(split)}; it must name the children at which stages after the "
                "first begin, in order, so that each stage has one"
            )
        starts.append(at)
    return starts


def cut_sequential(module: torch.nn.Sequential, starts: Sequence[int]) -> list[torch.nn.Module]:
    """Returns the stages. Their children keep the names that they have in the module."""
    children = list(module.named_children())
    ends = [*starts[1:], len(children)]
    return [
        torch.nn.Sequential(collections.OrderedDict(children[begin:end]))
        for begin, end in zip(starts, ends, strict=True)
    ]


def made(index: int, stage: torch.nn.Module | Callable[[], Any]) -> torch.nn.Module:
    """Returns the module of a stage, which may be given as a function that makes it."""
    module = stage if isinstance(stage, torch.nn.Module) else stage()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"stage {index} is {type(module).__name__}; it must be a torch.nn.Module, or a "
            "function that makes one"
        )
    return module
