"""init(comm=...) with mpi4py's communicators and with lists: mpirun -np N pytest tests/python/mpi

Every rank runs the same tests, and each holds for any N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from mpi4py import MPI

import perseus.torch.horovod as hvd

WORLD = MPI.COMM_WORLD
ME = WORLD.Get_rank()
ALL = list(range(WORLD.Get_size()))


@pytest.fixture(autouse=True)
def starts_and_ends_together() -> Iterator[None]:
    WORLD.Barrier()
    yield
    hvd.shutdown()


def check(ranks: Sequence[int]) -> None:
    """The world is that of these ranks of MPI.COMM_WORLD, in this order."""
    assert hvd.size() == len(ranks)
    assert hvd.rank() == ranks.index(ME)
    total = hvd.allreduce(torch.tensor([float(ME)]), op=hvd.Sum)
    assert total.item() == sum(ranks)
    first = hvd.broadcast(torch.tensor([ME]), root_rank=0)
    assert first.item() == ranks[0]
    assert hvd.allgather_object(ME) == list(ranks)


def ranks_of(comm: MPI.Comm) -> list[int]:
    ranks: list[int] = comm.allgather(ME)
    return ranks


def make_world() -> Any:
    return WORLD


def make_dup() -> Any:
    return WORLD.Dup()


def make_split() -> Any:
    return WORLD.Split(ME % 2, ME)


def make_halves_backwards() -> Any:
    return WORLD.Split(len(ALL) > 2 * ME, -ME)


def make_group() -> Any:
    """Returns a group of all but the last rank, which gets COMM_NULL."""
    return WORLD.Create(WORLD.Get_group().Incl(ALL[:-1] or ALL))


def make_graph() -> Any:
    return WORLD.Create_cart([len(ALL)], periods=[True])


MAKERS = [make_world, make_dup, make_split, make_halves_backwards, make_group, make_graph]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_communicator_is_the_world(make: Any) -> None:
    comm = make()
    hvd.init(comm=comm)
    check([ME] if comm == MPI.COMM_NULL else ranks_of(comm))


def test_one_after_the_other_and_the_same_again() -> None:
    for make in [*MAKERS, *MAKERS]:
        comm = make()
        hvd.init(comm)
        check([ME] if comm == MPI.COMM_NULL else ranks_of(comm))
        hvd.shutdown()
        if comm not in (WORLD, MPI.COMM_NULL):
            comm.Free()


def test_everybody_alone() -> None:
    hvd.init(comm=MPI.COMM_SELF)
    check([ME])


def test_a_communicator_may_be_freed_once_it_was_given() -> None:
    comm = WORLD.Dup()
    hvd.init(comm)
    comm.Free()
    check(ALL)


@pytest.mark.parametrize("ranks", [[0], ALL[::-1], ALL[::2]], ids=["first", "reversed", "even"])
def test_a_list_of_ranks_is_the_world_of_those_and_the_others_are_alone(ranks: list[int]) -> None:
    hvd.init(comm=ranks)
    check(ranks if ME in ranks else [ME])


@pytest.mark.parametrize("comm", [None, []], ids=["none", "empty"])
def test_nothing_is_all(comm: Any) -> None:
    hvd.init(comm=comm)
    check(ALL)


def test_a_second_call_that_asks_for_the_same_is_silent(recwarn: pytest.WarningsRecorder) -> None:
    hvd.init(comm=WORLD)
    hvd.init()
    hvd.init(comm=WORLD.Dup())
    hvd.init(comm=ALL)
    assert [str(warning.message) for warning in recwarn] == []
    check(ALL)


def test_a_second_call_that_asks_for_another_world_warns_and_changes_nothing() -> None:
    hvd.init(comm=WORLD)
    if len(ALL) > 1:
        with pytest.warns(UserWarning, match="init was called again, with comm="):
            hvd.init(comm=MPI.COMM_SELF)
    check(ALL)


def test_process_sets_are_of_the_communicator_s_ranks() -> None:
    comm = WORLD.Split(0, -ME)  # backwards
    last = hvd.ProcessSet([0])
    hvd.init(comm=comm, process_sets=[last] if len(ALL) > 1 else None)
    if len(ALL) > 1:
        assert last.included() == (ALL[-1] == ME)
    check(ALL[::-1])


def test_process_sets_are_the_parts_of_a_split() -> None:
    if len(ALL) < 3:
        pytest.skip("a set of all ranks exists already")
    parts = hvd.ProcessSet(WORLD.Split(ME % 2, ME))
    assert (parts.process_set_id, parts.ranks) == (None, None)
    for _ in range(2):  # and again after shutdown
        hvd.init(comm=WORLD, process_sets=[parts])
        mine = ALL[ME % 2 :: 2]
        assert parts.ranks == mine
        assert (parts.included(), parts.rank(), parts.size()) == (True, mine.index(ME), len(mine))
        total = hvd.allreduce(torch.tensor([float(ME)]), op=hvd.Sum, process_set=parts)
        assert total.item() == sum(mine)
        check(ALL)
        hvd.shutdown()


def test_a_process_set_is_of_a_group_that_others_are_not_in() -> None:
    if len(ALL) < 2:
        pytest.skip("needs a rank that is left out")
    world = WORLD.Split(0, -ME)  # whose rank 0 is the last
    group = hvd.ProcessSet(world.Create(world.Get_group().Incl([0])))
    listed = hvd.ProcessSet(range(1, len(ALL)))
    hvd.init(comm=world, process_sets=[group, listed][: len(ALL)])
    assert group.ranks == [0]
    assert group.included() == (hvd.rank() == 0)
    assert listed.included() == (hvd.rank() > 0)
    process_set = group if group.included() else listed
    assert hvd.allgather_object(hvd.rank(), process_set=process_set) == process_set.ranks


def test_process_sets_of_communicators_that_cannot_be() -> None:
    of_all = hvd.ProcessSet(WORLD)
    with pytest.raises(
        NotImplementedError, match=r"init\(comm, process_sets=\[...\]\) with an mpi4py"
    ):
        hvd.init(process_sets=[of_all])
    with pytest.raises(ValueError, match="exists already"):
        hvd.init(comm=WORLD, process_sets=[of_all])
    assert hvd.is_initialized()  # as in Horovod
    hvd.shutdown()
    if len(ALL) > 1:
        backwards = hvd.ProcessSet(WORLD.Split(0, -ME))
        with pytest.raises(ValueError, match="in ascending order"):
            hvd.init(comm=WORLD, process_sets=[backwards])
        different = hvd.ProcessSet([ME])
        with pytest.raises(ValueError, match=r"process set \d+: \[0\] and \[1\]"):
            hvd.init(comm=WORLD, process_sets=[different])
        more = [hvd.ProcessSet([0])] * (1 + (ME == 0))
        with pytest.raises(ValueError, match=r"gave init \[2, 1.*\] process sets"):
            hvd.init(comm=WORLD, process_sets=more)
    assert not hvd.is_initialized()
    hvd.init(comm=WORLD, process_sets="dynamic")
    with pytest.raises(NotImplementedError):
        hvd.add_process_set(of_all)


def test_mpi4py_goes_on_beside_it() -> None:
    hvd.init(comm=WORLD)
    for step in range(10):
        mine = hvd.allreduce_async(torch.full([1000], float(ME + step)), op=hvd.Sum)
        assert WORLD.allreduce(ME + step) == hvd.synchronize(mine)[0].item()


def test_an_intercommunicator_is_refused() -> None:
    if len(ALL) < 2:
        pytest.skip("needs two groups")
    half = WORLD.Split(ME % 2, ME)
    inter = half.Create_intercomm(0, WORLD, 1 - ME % 2)
    with pytest.raises(ValueError, match="comm is an intercommunicator"):
        hvd.init(comm=inter)
    assert not hvd.is_initialized()


def test_a_list_of_communicators_is_refused() -> None:
    with pytest.raises(TypeError, match="a rank of the world"):
        hvd.init(comm=[WORLD])
    assert not hvd.is_initialized()
