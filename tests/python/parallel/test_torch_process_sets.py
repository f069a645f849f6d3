"""Process sets of perseus.torch.horovod."""

from __future__ import annotations

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
    for taken in (members, range(hvd.size())):
        with pytest.raises(ValueError, match="exists already"):
            hvd.add_process_set(taken)
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


def int_size() -> int:
    hvd.init()
    size = hvd.size()
    hvd.barrier()
    hvd.shutdown()
    return size
