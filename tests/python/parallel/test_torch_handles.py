"""Handles: the results of poll and synchronize before, at and after the end of an operation."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


def own() -> torch.Tensor:
    return torch.arange(2.0 * hvd.size())


# Each starts an operation and gives its handle.
ASYNC = {
    "allreduce_async": lambda **k: hvd.allreduce_async(own(), op=hvd.Sum, **k),
    "allreduce_async_": lambda **k: hvd.allreduce_async_(own(), op=hvd.Sum, **k),
    "grouped_allreduce_async": lambda **k: hvd.grouped_allreduce_async([own()], op=hvd.Sum, **k),
    "grouped_allreduce_async_": lambda **k: hvd.grouped_allreduce_async_([own()], op=hvd.Sum, **k),
    "broadcast_async": lambda **k: hvd.broadcast_async(own(), 0, **k),
    "broadcast_async_": lambda **k: hvd.broadcast_async_(own(), 0, **k),
    "allgather_async": lambda **k: hvd.allgather_async(own(), **k),
    "grouped_allgather_async": lambda **k: hvd.grouped_allgather_async([own(), own()], **k),
    "alltoall_async": lambda **k: hvd.alltoall_async(own(), **k),
    "reducescatter_async": lambda **k: hvd.reducescatter_async(own(), op=hvd.Sum, **k),
    "grouped_reducescatter_async": lambda **k: hvd.grouped_reducescatter_async([own()], **k),
}


@pytest.mark.parametrize("operation", ASYNC)
class TestEveryOperation:
    def test_the_life_of_a_handle(self, operation):
        handle = ASYNC[operation](name=f"life of {operation}")
        assert type(handle) is int
        for _ in range(3):  # asking changes nothing
            assert hvd.poll(handle) in (True, False)
        assert hvd.synchronize(handle) is not None
        assert hvd.synchronize(handle) is None
        with pytest.raises(ValueError, match="was not created or has been cleared"):
            hvd.poll(handle)

    def test_poll_tells_that_another_rank_has_not_come(self, operation, two_ranks):
        first = hvd.rank() == 0
        handle = ASYNC[operation](name="waits") if first else None
        if first:
            assert not hvd.poll(handle)
        hvd.barrier()
        if not first:
            handle = ASYNC[operation](name="waits")
        hvd.barrier()  # agreed on after it
        result = hvd.synchronize(handle)
        assert result is not None

    def test_poll_is_true_once_synchronize_would_not_wait(self, operation):
        handle = ASYNC[operation](name="polled")
        while not hvd.poll(handle):
            pass
        assert hvd.poll(handle)
        assert hvd.synchronize(handle) is not None

    def test_in_any_order_from_any_number(self, operation):
        handles = [ASYNC[operation](name=f"many.{i}") for i in range(20)]
        assert len(set(handles)) == 20
        for handle in handles[::-2] + handles[::2]:
            assert hvd.synchronize(handle) is not None

    def test_a_failure_is_raised_once(self, operation, two_ranks):
        """HorovodInternalError on all ranks at synchronize; then the handle is gone."""
        calls = {
            "grouped_allreduce_async": lambda t: hvd.grouped_allreduce_async([t], name="f"),
            "grouped_allreduce_async_": lambda t: hvd.grouped_allreduce_async_([t], name="f"),
            "grouped_allgather_async": lambda t: hvd.grouped_allgather_async([t], name="f"),
            "grouped_reducescatter_async": lambda t: hvd.grouped_reducescatter_async([t], name="f"),
            "broadcast_async": lambda t: hvd.broadcast_async(t, 0, name="f"),
            "broadcast_async_": lambda t: hvd.broadcast_async_(t, 0, name="f"),
        }
        call = calls.get(operation) or (lambda t: getattr(hvd, operation)(t, name="f"))
        handle = call(torch.ones(hvd.size(), 2 if hvd.rank() == 0 else 3))
        with pytest.raises(hvd.HorovodInternalError):
            hvd.synchronize(handle)
        assert hvd.synchronize(handle) is None
        with pytest.raises(ValueError):
            hvd.poll(handle)


def test_some_of_a_series_are_seen_unfinished():
    """As Horovod's own tests want to see it: operations do not end in the call."""
    if hvd.size() == 1:
        pytest.skip("one rank has nothing to wait for")
    unfinished = False
    for attempt in range(100):
        handles = [hvd.allreduce_async(torch.ones(200_000), name=f"s.{i}") for i in range(10)]
        unfinished |= not all(hvd.poll(handle) for handle in handles)
        for handle in handles:
            hvd.synchronize(handle)
        everywhere = hvd.allreduce(
            torch.tensor(int(unfinished)), op=hvd.Min, name=f"seen.{attempt}"
        )
        if everywhere:
            break
    assert unfinished


def test_handles_that_never_were():
    for number in (0, -1, 2**40, 123_456_789):
        with pytest.raises(ValueError, match=f"Handle {number} was not created"):
            hvd.poll(number)
        assert hvd.synchronize(number) is None


def test_tensors_live_until_the_operation_has_ended(two_ranks):
    """Input and output are not freed while the engine uses them."""
    handles = []
    if hvd.rank() == 0:
        for i in range(20):
            handles.append(hvd.allreduce_async(torch.full((5000,), 1.0), op=hvd.Sum, name=f"l.{i}"))
        gc.collect()
        rubbish = [torch.full((5000,), -1.0) for _ in range(20)]
        assert len(rubbish) == 20
    hvd.barrier()
    if hvd.rank() != 0:
        for i in range(20):
            handles.append(hvd.allreduce_async(torch.full((5000,), 1.0), op=hvd.Sum, name=f"l.{i}"))
    for handle in handles:
        assert hvd.synchronize(handle).sum().item() == 5000 * hvd.size()


def test_in_place_and_grouped_results():
    tensor = own()
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum)
    assert hvd.synchronize(handle) is tensor
    tensors = (own(), own())
    assert hvd.synchronize(hvd.grouped_allreduce_async_(tensors, op=hvd.Sum)) is tensors
    gathered = hvd.synchronize(hvd.grouped_allgather_async([own(), own()]))
    assert type(gathered) is tuple and len(gathered) == 2
    output, received = hvd.synchronize(hvd.alltoall_async(own()))
    assert output.shape == own().shape and received.tolist() == [2] * hvd.size()


def test_an_operation_under_way_is_one_object_to_the_garbage_collector():
    """With thousands under way, it goes through all that are kept again and again."""
    tensors = [own() for _ in range(1000)]
    names = [f"kept.{i}" for i in range(len(tensors))]
    handles = [0] * len(tensors)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for i, tensor in enumerate(tensors):
            handles[i] = hvd.allreduce_async_(tensor, name=names[i])
        kept = len(gc.get_objects()) - before
    finally:
        gc.enable()
    for handle in handles:
        hvd.synchronize(handle)
    assert kept <= len(tensors) + 20


def test_what_a_shutdown_leaves_behind(two_ranks):
    """Operations in flight fail; a restarted engine does not know the old handles."""
    pending = hvd.allreduce_async(torch.ones(2), name="never") if hvd.rank() == 0 else None
    done = hvd.allreduce_async(torch.ones(2), name="done")
    while not hvd.poll(done):
        pass
    hvd.barrier()
    hvd.shutdown()
    if pending is not None:
        with pytest.raises(hvd.HorovodInternalError):
            hvd.synchronize(pending)
    hvd.init()
    with pytest.raises(ValueError):
        hvd.poll(done)
    assert hvd.synchronize(done) is None
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_a_sparse_allreduce_gives_what_is_called():
    result = hvd.sparse_allreduce_async(own().to_sparse(), name="called", op=hvd.Sum)
    assert callable(result) and not isinstance(result, int)
    torch.testing.assert_close(result().to_dense(), own() * hvd.size())
