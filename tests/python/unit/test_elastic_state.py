"""The state that a rank of a real job gets as it joins, also if a rank that gives it is killed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import state_given

#: The kinds of states, and Keras's backends.
KINDS = [
    ("torch", ""),
    ("tensorflow", ""),
    ("session", ""),
    ("tensorflow-keras", "tensorflow"),
    ("keras", "torch"),
]


def settings_of(kind: str, backend: str) -> dict[str, str]:
    needed = {"torch"} if kind == "torch" else {"keras", backend} if backend else {"tensorflow"}
    for name in needed:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}")
    return {"KERAS_BACKEND": backend} if backend else {}


@pytest.mark.parametrize(("kind", "backend"), KINDS)
@pytest.mark.parametrize("starts", [2, 3])
def test_a_joiner_gets_the_state_from_several_ranks(
    tmp_path: Path, kind: str, backend: str, starts: int
) -> None:
    settings = settings_of(kind, backend)
    result = state_given.job(tmp_path, kind, "", starts, **settings)
    state_given.all_get_it(result, starts)


@pytest.mark.parametrize(("kind", "backend"), KINDS)
@pytest.mark.parametrize("dies", ["0", "1"])
def test_a_rank_that_gives_the_state_is_killed_in_the_middle(
    tmp_path: Path, kind: str, backend: str, dies: str
) -> None:
    settings = settings_of(kind, backend)
    result = state_given.job(tmp_path, kind, dies, **settings)
    state_given.others_go_on(result, 2, dies)


def test_a_job_ends_if_all_that_give_the_state_are_killed(tmp_path: Path) -> None:
    settings_of("torch", "")
    state_given.state_is_lost(state_given.job(tmp_path, "torch", "0 1"))
