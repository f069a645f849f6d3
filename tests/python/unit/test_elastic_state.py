"""The state that a rank of a real job gets as it joins, also if a rank that gives it is killed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import state_given

#: The packages that each kind of state needs, the first of which is Keras's backend.
NEEDED = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow",),
    "session": ("tensorflow",),
    "tensorflow-keras": ("tensorflow", "keras"),
    "keras": ("torch", "keras"),
}


def settings_of(kind: str) -> dict[str, str]:
    for package in NEEDED[kind]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    return {"KERAS_BACKEND": NEEDED[kind][0]}


@pytest.mark.parametrize(
    ("kind", "starts"),
    [
        ("torch", 2),
        ("torch", 3),
        ("tensorflow", 3),
        ("session", 2),
        ("tensorflow-keras", 3),
        ("keras", 2),
    ],
)
def test_a_joiner_gets_the_state_from_several_ranks(tmp_path: Path, kind: str, starts: int) -> None:
    result = state_given.job(tmp_path, kind, "", starts, **settings_of(kind))
    state_given.all_get_it(result, starts)


@pytest.mark.parametrize(
    ("kind", "starts", "dies"),
    [
        ("torch", 2, "0"),
        ("torch", 2, "1"),
        ("tensorflow", 2, "0"),
        ("tensorflow", 3, "1"),
        ("session", 2, "1"),
        ("tensorflow-keras", 2, "0"),
        ("keras", 2, "1"),
    ],
)
def test_a_rank_that_gives_the_state_is_killed_in_the_middle(
    tmp_path: Path, kind: str, starts: int, dies: str
) -> None:
    result = state_given.job(tmp_path, kind, dies, starts, **settings_of(kind))
    state_given.others_go_on(result, starts, dies)


def test_a_job_ends_if_all_that_give_the_state_are_killed(tmp_path: Path) -> None:
    result = state_given.job(tmp_path, "torch", "0 1", **settings_of("torch"))
    state_given.state_is_lost(result)


def test_a_joiner_that_has_the_state_goes_on_if_all_others_are_killed(tmp_path: Path) -> None:
    result = state_given.job(tmp_path, "torch", "", DIES_AFTER="0 1", **settings_of("torch"))
    state_given.joiner_goes_on_alone(result)
