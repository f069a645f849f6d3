"""Steps of an optimizer for some of its parameters, with groups that were saved before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch


@contextlib.contextmanager
def partial_groups(
    optimizer: torch.optim.Optimizer,
    groups: Sequence[dict[str, Any]],
    params: Iterable[torch.Tensor],
) -> Iterator[None]:
    """Within it, the optimizer has these groups, and of their parameters these only.

    Raises RuntimeError at the end if the optimizer has changed an option: it then keeps state in
    options, and the parts of a step would see different values of it.
    """
    chosen = set(params)
    whole = optimizer.param_groups
    parts = [
        (before, {**before, "params": [param for param in before["params"] if param in chosen]})
        for before in groups
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
                    "cannot update one parameter after the other; do not use overlap_forward"
                )


def copied_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Returns a copy of the present groups and options, which later changes do not affect."""
    return [
        {key: _copied(value) for key, value in group.items()} for group in optimizer.param_groups
    ]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return list(value) if isinstance(value, list) else value
