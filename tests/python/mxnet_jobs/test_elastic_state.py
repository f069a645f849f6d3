"""The state that a rank of a real job gets as it joins, also if a rank that gives it is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
import state_given


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
@pytest.mark.parametrize("starts", [2, 3])
def test_a_joiner_gets_the_state_from_several_ranks(
    tmp_path: Path, engine: str, starts: int
) -> None:
    result = state_given.job(tmp_path, "mxnet", "", starts, MXNET_ENGINE_TYPE=engine)
    state_given.all_get_it(result, starts)


@pytest.mark.parametrize("dies", ["0", "1"])
def test_a_rank_that_gives_the_state_is_killed_in_the_middle(tmp_path: Path, dies: str) -> None:
    result = state_given.job(tmp_path, "mxnet", dies)
    state_given.others_go_on(result, 2, dies)
