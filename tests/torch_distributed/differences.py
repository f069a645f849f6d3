"""What is not as it is on Gloo, and why."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

import torch

_MORE = "Gloo refuses this, and Perseus may serve it"
#: By patterns of runs. It is an error if no run of a pattern differs.
REASONS = {
    "all_reduce: every second column*": "Gloo reduces other elements than those of the tensor",
    "all_reduce_coalesced: none*": "PyTorch finds no backend for it, as there is no tensor",
    "reduce_scatter_single: stacked*": _MORE,
    "all_gather: uneven parts*": _MORE,
    "all_gather_single: stacked*": _MORE,
    "all_to_all: uneven parts*": _MORE,
    "Work.get_future: of all_gather_into_tensor": "Gloo gives a view of each rank's part",
    "Work.get_future: of reduce_scatter_tensor": _MORE,
}
#: Types that Gloo lacks: Perseus moves them all, and reduces some.
_TYPES = ("int16", "uint16", "uint32", "uint64", "float8_e4m3fn")
#: Runs that may differ.
POSSIBLE = {
    **{f"*: *{name}*": "Gloo lacks the type" for name in _TYPES},
    # From PyTorch 2.15 on, Gloo's groups can be split. It attaches a recorder, which needs C++.
    "split_group: in one part*": "Perseus refuses it; new_group makes such a group",
    "gather_single: one tensor*": _MORE,
    "gather_into_tensor: one tensor*": _MORE,
}
#: The table is of this PyTorch.
OF_TABLE = (2, 13)
#: What an older PyTorch finds for its own backends only.
_OWN_ONLY = "ProcessGroup._has_hooks: none"


#: In an older PyTorch, Gloo waits for these until the time-out, and its world is of no use then.
HANG_IN_OLDER = (
    "ProcessGroup.gather: a tensor to a root",
    "ProcessGroup.scatter: a list from a root",
)


def version() -> tuple[int, ...]:
    return tuple(map(int, torch.__version__.split(".")[:2]))


def is_older() -> bool:
    return version() < OF_TABLE


def is_of_older(name: str, ours: Any, gloos: Any) -> bool:
    """Returns whether they differ since PyTorch is older: it lacks a function, or Gloo refuses what
    Perseus serves."""
    if not is_older():
        return False
    if is_error(ours):
        return name == _OWN_ONLY or "AttributeError" in ours[1]
    return is_error(gloos)


def is_error(outcome: Any) -> bool:
    return isinstance(outcome, list) and outcome[:1] == ["error"]


def may_differ(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in (*REASONS, *POSSIBLE))


def without_need(differing: Iterable[str]) -> list[str]:
    """Returns the patterns of REASONS that none of these runs have."""
    runs = list(differing)
    return [pattern for pattern in REASONS if not fnmatch.filter(runs, pattern)]
