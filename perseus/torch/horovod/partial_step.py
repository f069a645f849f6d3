"""An optimizer's step for some of its parameters, with the options of an earlier moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch


@contextlib.contextmanager
def partial_groups(
    optimizer: torch.optim.Optimizer,
    options: Sequence[dict[str, Any]],
    params: Iterable[torch.Tensor],
) -> Iterator[None]:
    """Within it, the optimizer has these parameters only, and these options of its groups.

    RuntimeError at the end if the optimizer has changed an option: then it keeps state there, of
    which each part of a step would see another.
    """
    chosen = set(params)
    whole = optimizer.param_groups
    parts = [
        (before, {**before, "params": [param for param in group["params"] if param in chosen]})
        for before, group in zip(options, whole, strict=True)
    ]
    optimizer.param_groups = [part for _, part in parts if part["params"]]
    try:
        yield
    finally:
        optimizer.param_groups = whole
    for before, part in parts:
        for key, value in part.items():
            if key != "params" and before.get(key) is not value:
                raise RuntimeError(
                    f"{type(optimizer).__name__} keeps {key!r} in its parameter groups, so it "
                    "cannot update one parameter after the other; leave out overlap_forward"
                )


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The groups' options as they are now; what schedulers do to them later does not show."""
    return [
        {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]
