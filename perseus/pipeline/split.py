"""The stages of a pipeline, from a list of modules or from one that is cut."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from perseus.pipeline.traced import Traced
from perseus_core.arguments import whole_number

__all__ = ["Divisible", "divisible", "made"]


class Divisible(Protocol):
    """A module that can be cut at some of its submodules."""

    def candidates(self) -> list[str]:
        """Returns the submodules at which stages after the first may begin, in order."""
        ...

    def cut(self, points: Sequence[Any]) -> Sequence[torch.nn.Module]:
        """Returns the stages; those after the first begin at the points.

        Raises ValueError if these are none at which it can be cut, or are not in order.
        """
        ...


def divisible(
    module: torch.nn.Module, split: Any, sample: Any, device: torch.device | None
) -> Divisible:
    """Returns a module so that it can be cut: a Sequential between its children, other modules, and
    a Sequential that is to be cut within a child, after they have been traced.

    Raises ValueError if a module must be traced and cannot be, or there is no sample.
    """
    if isinstance(module, torch.nn.Sequential):
        points = [] if isinstance(split, str) else split
        if not any(isinstance(point, str) and "." in point for point in points):
            return Children(module)
    if sample is None:
        raise ValueError(
            f"sample is None; to cut {type(module).__name__}, which is traced for that, it must be "
            "the input of a micro-batch"
        )
    return Traced(module, sample, device)


class Children:
    """A Sequential, to be cut between its children, which keep their names. A point is the name or
    the number of one."""

    def __init__(self, module: torch.nn.Sequential) -> None:
        self._children = list(module.named_children())

    def candidates(self) -> list[str]:
        return [name for name, _ in self._children[1:]]

    def cut(self, points: Sequence[Any]) -> list[torch.nn.Module]:
        starts = [0]
        for point in points:
            starts.append(self._number(point))
            if starts[-1] <= starts[-2]:
                raise ValueError(
                    f"split is {list(points)}; it must name the children at which stages after the "
                    "first begin, in order, so that each stage has one"
                )
        ends = [*starts[1:], len(self._children)]
        return [
            torch.nn.Sequential(collections.OrderedDict(self._children[begin:end]))
            for begin, end in zip(starts, ends, strict=True)
        ]

    def _number(self, point: Any) -> int:
        names = [name for name, _ in self._children]
        at = names.index(point) if point in names else None
        if at is None and not isinstance(point, str):
            at = whole_number("split point", point)
        if at is None or not 0 <= at < len(names):
            raise ValueError(
                f"split point {point!r} is no child of the module; its children are "
                f"{', '.join(names)}"
            )
        return at


def made(index: int, stage: torch.nn.Module | Callable[[], Any]) -> torch.nn.Module:
    """Returns the module of a stage, which may be given as a function that makes it."""
    module = stage if isinstance(stage, torch.nn.Module) else stage()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"stage {index} is {type(module).__name__}; it must be a torch.nn.Module, or a "
            "function that makes one"
        )
    return module
