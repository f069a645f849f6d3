"""Tests init(comm=...) without MPI or with a stand-in; tests/python/mpi uses the real one."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from conftest import RunRanks

import perseus_core
from perseus.common.basics import Basics


class Comm:
    """Like mpi4py's. `ranks` are the members' ranks in MPI.COMM_WORLD, -1 for strangers."""

    def __init__(self, ranks: list[int], inter: bool = False):
        self.ranks = ranks
        self.inter = inter

    def Get_group(self) -> list[int]:
        return self.ranks

    def Get_size(self) -> int:
        return len(self.ranks)

    def Get_rank(self) -> int:
        return 1

    def Is_inter(self) -> bool:
        return self.inter


class Group:
    @staticmethod
    def Translate_ranks(group: list[int], ranks: range, world: list[int]) -> list[int]:
        return [world.index(group[rank]) if group[rank] in world else -9 for rank in ranks]


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.SimpleNamespace(
        Comm=Comm,
        Group=Group,
        COMM_WORLD=Comm([10, 11, 12, 13]),
        COMM_NULL=Comm([]),
        UNDEFINED=-9,
        Is_initialized=lambda: True,
        Is_finalized=lambda: False,
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    for name in ("PERSEUS_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    return module


def asked(monkeypatch: pytest.MonkeyPatch, comm: Any) -> list[int] | None:
    """Returns the ranks that the engine is given."""

    class Called(Exception):
        pass

    def init(ranks: list[int] | None) -> None:
        raise Called(ranks)

    monkeypatch.setattr(perseus_core, "init", init)
    with pytest.raises(Called) as called:
        Basics().init(comm)
    ranks: list[int] | None = called.value.args[0]
    return ranks


def test_a_communicator_stands_for_the_launched_ranks_in_its_order(
    mpi: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(monkeypatch, Comm([13, 10])) == [3, 0]
    assert asked(monkeypatch, mpi.COMM_WORLD) == [0, 1, 2, 3]


def test_who_is_in_no_communicator_gets_a_world_of_its_own(
    mpi: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(monkeypatch, mpi.COMM_NULL) == [1]


def test_a_list_of_ranks_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, (2, 0)) == [2, 0]
    assert asked(monkeypatch, range(2)) == [0, 1]
    assert asked(monkeypatch, []) is None
    assert asked(monkeypatch, None) is None


@pytest.mark.parametrize(
    ("comm", "error", "message"),
    [
        (3, ValueError, "comm is int; it takes a list of ranks or an mpi4py communicator"),
        ("world", ValueError, "comm is str; it takes a list of ranks"),
        ([0, 0], ValueError, "rank 0 in the ranks given to init is there twice"),
        ([7], ValueError, "rank 7 in the ranks given to init is not one of the 1 launched"),
        ([-1], ValueError, "rank -1"),
        ([0.5], TypeError, "a rank of the world"),
        ([None], TypeError, "a rank of the world"),
    ],
)
def test_what_comm_cannot_be(comm: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Basics().init(comm)
    assert not perseus_core.is_initialized()


def test_communicators_that_cannot_be_a_world(mpi: Any) -> None:
    for comm, message in (
        (Comm([10, 11], inter=True), "comm is an intercommunicator"),
        (Comm([10, -1]), "processes that are not in MPI.COMM_WORLD"),
        ([Comm([10, 11])], "a rank of the world"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            Basics().init(comm)
    mpi.Is_finalized = lambda: True
    with pytest.raises(ValueError, match="MPI is not initialized, or already finalized"):
        Basics().init(mpi.COMM_WORLD)


@pytest.mark.parametrize("name", ["PERSEUS_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_a_job_that_mpi_does_not_know_takes_no_communicator(
    name: str, mpi: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpi.COMM_WORLD = Comm([10])
    monkeypatch.setenv(name, "4")
    with pytest.raises(ValueError, match=f"MPI knows of 1 of the 4 processes of this job .{name}"):
        Basics().init(mpi.COMM_WORLD)


def test_ranks_that_perseusrun_launched_form_worlds_again_and_again(run_ranks: RunRanks) -> None:
    script = """
import os, numpy
import perseus_core
from perseus.common.basics import Basics
hvd, me = Basics(), int(os.environ["PERSEUS_RANK"])
for comm in ([0, 1], [2, 0, 1], [1], None, [], [0, 2], [1, 2]):
    hvd.init(comm)
    ranks = comm or [0, 1, 2]
    ranks = ranks if me in ranks else [me]
    assert (hvd.size(), hvd.rank()) == (len(ranks), ranks.index(me)), comm
    total = perseus_core.allreduce(numpy.array([me]), perseus_core.ReduceOp.SUM)
    assert total == sum(ranks), (comm, total)
    hvd.shutdown()
print("right")
"""
    result = run_ranks(3, script)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 3


def test_ranks_that_are_left_out_need_not_come(run_ranks: RunRanks) -> None:
    script = """
import os
from perseus.common.basics import Basics
hvd, me = Basics(), int(os.environ["PERSEUS_RANK"])
if me in (0, 2):
    for _ in range(3):
        hvd.init([0, 2])
        print(hvd.rank(), hvd.size())
        hvd.shutdown()
"""
    result = run_ranks(3, script)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == 3 * ["[0]<stdout>:0 2"] + 3 * ["[2]<stdout>:1 2"]
