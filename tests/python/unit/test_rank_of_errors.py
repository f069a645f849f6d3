"""The errors of collectives say which rank is gone, as an attribute."""

from __future__ import annotations

import os
import pickle

import pytest
from conftest import RunRanks

from perseus_core import AbortedError, HorovodInternalError, MismatchError

AFTER = "so operations with it cannot complete: look at what that rank printed"


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("recv from rank 1: lost rank 12 on node1: its process has ended", 12),
        ("lost rank 3 on a and rank 4 on b: they take no part", 3),
        (f"allreduce of 'w': rank 2 on node1 has shut down or ended, {AFTER}", 2),
        ("allreduce of 'w': rank 0 on a has ended: ValueError: rank 7 on b has ended", 0),
        ("rank 1 (launched as rank 5) on fe80::1 has ended: KeyError: 3", 1),
        ("rank 1 on 10.86.0.2 cannot go on: what has come from rank 0 on 10.86.0.1 was changed", 1),
        ("rank 0 on a has broken off with rank 1 on b over the connection", None),
        ("what rank 1 on b has sent to rank 0 on a has not arrived for 30 s", None),
        ("this rank has shut down", None),
    ],
)
def test_the_text_of_the_engine_names_one_rank(text: str, rank: int | None) -> None:
    error = AbortedError(text)
    assert error.rank == rank
    assert pickle.loads(pickle.dumps(error)).rank == rank


def test_a_mismatch_has_no_such_rank() -> None:
    text = "allreduce of 'w': rank 2 submitted float32[3], rank 0 float32[4]"
    assert MismatchError(text).rank is HorovodInternalError(text).rank is None


ENDS = """
import os, numpy, perseus_core
perseus_core.init()
perseus_core.barrier()
if perseus_core.rank() == 1:
    if os.environ["HOW"] == "raises": raise ValueError("rank 2 on a has ended")
    if os.environ["HOW"] == "dies": os._exit(3)
    perseus_core.shutdown()
else:
    try:
        perseus_core.allreduce(numpy.ones(4), name="w")
    except perseus_core.AbortedError as error:
        print("gone:", error.rank, flush=True)
"""


@pytest.mark.parametrize("how", ["raises", "dies", "leaves"])
def test_all_others_are_told_which_rank_has_gone(run_ranks: RunRanks, how: str) -> None:
    result = run_ranks(3, ENDS, environment={**os.environ, "HOW": how})
    assert result.stdout.count("gone: 1\n") == 2, result.stdout + result.stderr
