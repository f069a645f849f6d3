"""What is not as it is on Gloo, and why."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

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
POSSIBLE = {f"*: *{name}*": "Gloo lacks the type" for name in _TYPES}


#: Since this version Gloo serves all that it does in the table.
_COMPLETE = (2, 13)


def is_served_since(ours: object, gloos: object) -> bool:
    """Returns whether an older Gloo refuses what Perseus serves."""
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    return version < _COMPLETE and is_error(gloos) and not is_error(ours)


def is_error(outcome: object) -> bool:
    return isinstance(outcome, list) and outcome[:1] == ["error"]


def may_differ(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in (*REASONS, *POSSIBLE))


def without_need(differing: Iterable[str]) -> list[str]:
    """Returns the patterns of REASONS that none of these runs have."""
    runs = list(differing)
    return [pattern for pattern in REASONS if not fnmatch.filter(runs, pattern)]
