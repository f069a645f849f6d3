"""Process sets of perseus.torch.horovod."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402


@pytest.fixture
def fresh():
    """init may be called with arguments."""
    if hvd.is_initialized():
        hvd.barrier()
        hvd.shutdown()
    yield
    if hvd.is_initialized():
        hvd.barrier()
        hvd.shutdown()


def test_sets_given_to_init(fresh):
    first = hvd.ProcessSet([0])
    assert first.size() is None and first.rank() is None and first.included() is None
    assert str(first) == "ProcessSet(process_set_id=None, ranks=[0], mpi_comm=None)"
    if int_size() == 1:
        hvd.init()  # the set of rank 0 is the world
        return
    hvd.init(process_sets=[first])
    assert hvd.global_process_set.ranks == list(range(hvd.size()))
    assert first.included() == (hvd.rank() == 0)
    assert first.size() == 1
    if first.included():
        assert first.rank() == 0
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=first).tolist() == [1.0, 1.0]
    else:
        with pytest.raises(ValueError):
            first.rank()
        with pytest.raises(ValueError):
            hvd.allreduce(torch.ones(2), process_set=first)
    with pytest.raises(ValueError, match="dynamic"):
        hvd.add_process_set([hvd.size() - 1])
    hvd.barrier()
    hvd.shutdown()
    assert first.process_set_id is None
    hvd.init()


def test_fixed_sets_follow_dynamic_ones(fresh):
    hvd.init(process_sets="dynamic")
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    hvd.shutdown()
    hvd.init()  # as in a later world of an elastic job
    if hvd.size() > 1:
        hvd.remove_process_set(hvd.add_process_set([0]))
    hvd.shutdown()
    if int_size() == 1:
        return
    hvd.init(process_sets=[hvd.ProcessSet([0])])
    with pytest.raises(ValueError, match="dynamic"):
        hvd.add_process_set([hvd.size() - 1])


def test_the_number_of_another_set_is_refused(fresh):
    """Horovod's own tests do that. A copy of a registered set is as good as the set."""
    first = hvd.ProcessSet([0])
    if int_size() == 1:
        hvd.init()
        first = hvd.global_process_set
    else:
        hvd.init(process_sets=[first])
    for number in (10, 0, first.process_set_id):
        fake = hvd.ProcessSet([0, 5])
        fake.process_set_id = number
        with pytest.raises(ValueError, match=r"is not registered, and its number is that of"):
            hvd.allreduce(torch.ones(2), process_set=fake)
    for registered in (first, hvd.global_process_set):
        if registered.included():
            copied = copy.deepcopy(registered)
            assert hvd.allreduce(torch.ones(1), process_set=copied).item() == 1.0


def test_sets_come_and_go(fresh, monkeypatch):
    monkeypatch.setenv("PERSEUS_DYNAMIC_PROCESS_SETS", "0")
    hvd.init(process_sets="dynamic")
    if hvd.size() == 1:
        with pytest.raises(ValueError):
            hvd.add_process_set([0])
        return
    last = hvd.size() - 1
    members = [0, last] if last > 1 else [last]
    ends = hvd.add_process_set(reversed(members))
    assert ends.ranks == members
    if ends.included():
        gathered = hvd.allgather(torch.tensor([hvd.rank()]), process_set=ends)
        assert gathered.tolist() == members
        assert hvd.broadcast_object(hvd.rank(), last, process_set=ends) == last
        hvd.barrier(process_set=ends)
    with pytest.raises(ValueError, match="exists already"):
        hvd.add_process_set(members)
    with pytest.raises(ValueError, match=r"exists already: .* the global process set"):
        hvd.add_process_set(range(hvd.size()))
    assert hvd.remove_process_set(ends)
    assert not hvd.remove_process_set(ends)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert ends.process_set_id is None


def test_a_set_takes_ranks(fresh):
    hvd.init()
    with pytest.raises(ValueError):
        hvd.ProcessSet(["0"])
    with pytest.raises(ValueError):
        hvd.ProcessSet(3)
    with pytest.raises(ValueError, match="dynamic"):
        hvd.shutdown()
        hvd.init(process_sets="sometimes")
    hvd.init()


class TestASetThatIsRefusedInInit:
    """Either all sets are there, or init has failed and can be called once more.

    A duplicate is an error as well, but then the process is in the job, as in Horovod.
    """

    @staticmethod
    def is_gone(*sets: hvd.ProcessSet) -> None:
        assert not hvd.is_initialized()
        assert [process_set.process_set_id for process_set in sets] == [None] * len(sets)

    @staticmethod
    def goes_on() -> None:
        hvd.init()
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2

    def test_on_all_ranks(self, fresh):
        size = int_size()
        good = [hvd.ProcessSet([0])] if size > 1 else []
        for ranks, message in (
            ([0, 0], "different numbers"),
            ([size], "different numbers"),
            ([], "at least one rank"),
        ):
            with pytest.raises(ValueError, match=message):
                hvd.init(process_sets=[*good, hvd.ProcessSet(ranks)])
            self.is_gone(*good)
        hvd.init(process_sets=good)
        if good:
            assert good[0].included() == (hvd.rank() == 0)
        self.goes_on()

    def test_a_duplicate_leaves_the_other_sets_and_the_job(self, fresh):
        size = int_size()
        if size == 1:
            with pytest.raises(ValueError, match="global process set"):
                hvd.init(process_sets=[hvd.ProcessSet([0])])
            assert hvd.is_initialized()
            return
        first, last = hvd.ProcessSet([0]), hvd.ProcessSet([size - 1])
        for duplicate in (hvd.ProcessSet([0]), first, hvd.ProcessSet(range(size))):
            with pytest.raises(ValueError, match=r"exists already"):
                hvd.init(process_sets=[first, duplicate, last])
            assert hvd.is_initialized()
            for process_set in (first, last):
                if process_set.included():
                    summed = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=process_set)
                    assert summed.item() == 1.0
            if duplicate is not first:
                assert duplicate.process_set_id is None
            with pytest.warns(UserWarning) if duplicate.process_set_id is None else nullcontext():
                hvd.init(process_sets=[first, duplicate])  # does nothing
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
            hvd.shutdown()
            assert first.process_set_id is last.process_set_id is None
        with pytest.raises(ValueError, match="global process set"):
            hvd.init(process_sets=[first, hvd.global_process_set])
        assert hvd.global_process_set.process_set_id == 0
        self.goes_on()

    def test_on_one_rank(self, fresh):
        size = int_size()
        if size == 1:
            pytest.skip("needs ranks that can differ")
        good = hvd.ProcessSet([0])
        for _ in range(2):
            mine_is_wrong = own_rank() == size - 1
            given = [good, hvd.ProcessSet([size] if mine_is_wrong else [1])]
            with pytest.raises(ValueError if mine_is_wrong else hvd.HorovodInternalError):
                hvd.init(process_sets=given)
            self.is_gone(*given)
            self.goes_on()
            hvd.barrier()
            hvd.shutdown()
        self.goes_on()

    def test_sets_that_differ(self, fresh):
        size = int_size()
        if size == 1:
            pytest.skip("needs ranks that can differ")
        given = hvd.ProcessSet([0 if own_rank() == 0 else 1])
        with pytest.raises(hvd.HorovodInternalError):
            hvd.init(process_sets=[given])
        self.is_gone(given)
        self.goes_on()


def test_a_set_that_one_rank_alone_cannot_name(fresh, monkeypatch):
    monkeypatch.setenv("PERSEUS_DYNAMIC_PROCESS_SETS", "1")
    hvd.init()
    if hvd.size() == 1:
        pytest.skip("needs ranks that can differ")
    for wrong in (["0"], 3, [hvd.size()], [0, 0], [2**40], []):
        if hvd.rank() == hvd.size() - 1:
            with pytest.raises(ValueError):
                hvd.add_process_set(wrong)
        else:
            with pytest.raises(hvd.HorovodInternalError, match=f"rank {hvd.size() - 1} "):
                hvd.add_process_set([0])
    only = hvd.add_process_set([0])
    with pytest.raises(ValueError, match="exists already"):
        hvd.add_process_set(only)
    with pytest.raises(TypeError, match="process_set is int"):
        hvd.remove_process_set(only.process_set_id)
    assert hvd.remove_process_set(only)


class TestInitAgain:
    @pytest.mark.parametrize(
        "again",
        [
            lambda first: {},
            lambda first: {"comm": range(hvd.size())},
            lambda first: {"process_sets": first},
        ],
        ids=["nothing", "the world", "the same sets"],
    )
    def test_with_what_is_so_is_silent(self, fresh, again, recwarn):
        first = [hvd.ProcessSet([0])] if int_size() > 1 else []
        hvd.init(process_sets=first)
        hvd.init(**again(first))
        assert [str(warning.message) for warning in recwarn] == []

    @pytest.mark.parametrize(
        "again, ignored",
        [
            ({"comm": [7, 0]}, r"comm=\[7, 0\] \(the world is \[0"),
            ({"process_sets": [hvd.ProcessSet([7])]}, r"process_sets=\[\[7\]\]"),
            ({"process_sets": "dynamic"}, 'process_sets="dynamic"'),
        ],
    )
    def test_with_something_else_warns_and_changes_nothing(
        self, fresh, again, ignored, monkeypatch
    ):
        monkeypatch.setenv("PERSEUS_DYNAMIC_PROCESS_SETS", "0")
        hvd.init()
        before = hvd.rank(), hvd.size()
        with pytest.warns(
            UserWarning, match=f"init was called again, with {ignored}.* ignored"
        ) as w:
            hvd.init(**again)
        assert w[0].filename == __file__
        assert "\n" not in str(w[0].message)
        assert (hvd.rank(), hvd.size()) == before
        with pytest.raises(ValueError, match="dynamic"):
            hvd.add_process_set([0])


def own_rank() -> int:
    return asked_of_a_short_life(hvd.rank)


def int_size() -> int:
    return asked_of_a_short_life(hvd.size)


def asked_of_a_short_life(question: Callable[[], int]) -> int:
    """Starts an engine, asks it the question, and shuts it down again."""
    hvd.init()
    answer = question()
    hvd.barrier()
    hvd.shutdown()
    return answer


def test_sets_made_of_rules(fresh):
    host = hvd.ProcessSet(lambda world: world.host)
    mine = hvd.ProcessSet(lambda world: [world.rank])
    first = hvd.ProcessSet(lambda world: [world.size - 1, *world.hosts[0][:1]])
    nobody = hvd.ProcessSet(lambda world: [])
    assert host.ranks is None
    hvd.init(process_sets=[host, mine, first] if int_size() > 1 else [host, mine])
    assert hvd.rank() in host.ranks and host.size() == hvd.local_size()
    assert (mine.ranks, mine.size(), mine.rank()) == ([hvd.rank()], 1, 0)
    total = hvd.allreduce(torch.tensor([hvd.rank()]), op=hvd.Sum, process_set=mine)
    assert total.tolist() == [hvd.rank()]
    if hvd.size() > 1:
        assert first.ranks == [0, hvd.size() - 1]
        assert first.included() == (hvd.rank() in first.ranks)
    hvd.barrier()
    hvd.shutdown()
    assert host.process_set_id is None
    hvd.init(process_sets=[nobody])
    assert (nobody.process_set_id, nobody.ranks) == (None, [])


def test_a_rule_may_name_an_existing_set(fresh):
    hvd.init(process_sets="dynamic")
    everyone = hvd.add_process_set(hvd.ProcessSet(lambda world: range(world.size)))
    assert everyone.process_set_id == 0 and everyone.ranks == list(range(hvd.size()))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=everyone).item() == hvd.size()
    assert hvd.remove_process_set(everyone) is False
    if hvd.size() > 1:
        alone = hvd.add_process_set([0])
        again = hvd.add_process_set(lambda world: [0])
        assert again.process_set_id == alone.process_set_id
        with pytest.raises(ValueError, match="another name for a process set"):
            hvd.remove_process_set(again)
        assert hvd.remove_process_set(alone) is True


def test_a_rule_that_gives_no_ranks_of_the_world(fresh):
    with pytest.raises(ValueError, match="they must be ranks of the world, from 0 to"):
        hvd.init(process_sets=[hvd.ProcessSet(lambda world: [world.size])])
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="a rank of a ProcessSet must be an int"):
        hvd.init(process_sets=[hvd.ProcessSet(lambda world: ["0"])])
    assert not hvd.is_initialized()
    hvd.init(process_sets="dynamic")
    last = hvd.size() - 1
    with pytest.raises((ZeroDivisionError, ValueError), match=r"division|another rank found no"):
        hvd.add_process_set(lambda world: [1 // (last - world.rank)])
