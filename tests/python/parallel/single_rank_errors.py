"""Shared by tests of a mistake that only one rank makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import pytest

import perseus_core
from perseus_core import HorovodInternalError, MismatchError


def faulty_ranks() -> list[int]:
    """Returns the ranks that make the mistake: the first and the last, which may be the same."""
    return sorted({0, perseus_core.size() - 1})


def fails_everywhere(
    faulty: Collection[int],
    bad: Callable[[], object],
    good: Callable[[], object],
    error: type[Exception],
    reason: str,
) -> None:
    """`bad` raises `error` on the faulty ranks; `good` tells the others of one, and why."""
    if perseus_core.rank() in faulty:
        with pytest.raises(error, match=reason) as raised:
            bad()
        assert not isinstance(raised.value, HorovodInternalError)
        assert "\n" not in str(raised.value)
        return
    with pytest.raises(MismatchError, match=reason) as raised:
        good()
    named = re.search(r"rank (\d+) could not take part", str(raised.value))
    assert named and int(named[1]) in faulty, raised.value
