"""A wrong argument raises what Horovod raises, and the job goes on."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402
from perseus.common.exceptions import HorovodInternalError  # noqa: E402


@pytest.fixture(autouse=True)
def the_job_goes_on():
    hvd.init()
    yield
    if not hvd.is_initialized():
        return
    result = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="after")
    assert result.tolist() == [hvd.size()] * 3


def first() -> bool:
    return hvd.rank() == 0


def test_one_class_is_caught_under_both_names():
    assert hvd.HorovodInternalError is HorovodInternalError
    assert issubclass(HorovodInternalError, RuntimeError)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize(
    "differing",
    [
        lambda: hvd.allreduce(torch.ones(3 if first() else 4), name="shape"),
        lambda: hvd.allreduce(torch.ones(2, 2) if first() else torch.ones(4), name="dims"),
        lambda: hvd.allreduce(
            torch.ones(3, dtype=torch.float32 if first() else torch.float64), name="dtype"
        ),
        lambda: hvd.allreduce(torch.ones(3), op=hvd.Sum if first() else hvd.Average, name="op"),
        lambda: hvd.allreduce(torch.ones(3), prescale_factor=float(first()), name="prescale"),
        lambda: hvd.allreduce(torch.ones(3), postscale_factor=float(first()), name="postscale"),
        lambda: hvd.broadcast(torch.ones(3), 0 if first() else 1, name="root"),
        lambda: hvd.broadcast(torch.ones(3 if first() else 4), 0, name="broadcast"),
        lambda: hvd.allgather(torch.ones(2, 3 if first() else 4), name="allgather"),
        lambda: hvd.alltoall(torch.ones(hvd.size(), 3 if first() else 4), name="alltoall"),
        lambda: hvd.reducescatter(torch.ones(4 if first() else 5), name="reducescatter"),
    ],
    ids=[
        "shape",
        "dims",
        "dtype",
        "op",
        "prescale",
        "postscale",
        "root",
        "broadcast shape",
        "allgather shape",
        "alltoall shape",
        "reducescatter shape",
    ],
)
def test_ranks_that_differ_fail_on_every_rank(differing):
    with pytest.raises(HorovodInternalError):
        differing()


def test_a_name_twice_in_flight(two_ranks):
    if first():
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="twice")
        with pytest.raises(ValueError):
            hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="twice")
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 3


def test_a_failed_handle_is_cleared(two_ranks):
    handle = hvd.allreduce_async(torch.ones(3 if first() else 4), name="failing")
    with pytest.raises(HorovodInternalError):
        hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None


def test_types_and_layouts_that_cannot_be_sent():
    with pytest.raises(ValueError, match="is not supported"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="is not supported"):
        hvd.allreduce(torch.ones(2, 2).to_sparse())
    with pytest.raises(ValueError, match="CPU"):
        hvd.allreduce(torch.ones(2, device="meta"))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: hvd.allreduce([1.0]), "tensor is list; it takes a torch.Tensor"),
        (lambda: hvd.broadcast_(None, 0), "tensor is NoneType"),
        (lambda: hvd.grouped_allgather([torch.ones(1), 2]), r"tensors\[1\] is int"),
        (lambda: hvd.grouped_allreduce_(3), "tensors is int"),
        (lambda: hvd.allreduce(torch.ones(1), compression="fp16"), "compression is 'fp16'"),
        (lambda: hvd.allreduce(torch.ones(1), name=3), "name is 3; it takes a str"),
        (lambda: hvd.allreduce(torch.ones(1), process_set=[0]), "process_set is list"),
        (lambda: hvd.sparse_allreduce_async(torch.ones(1), None, hvd.Sum), "name is None"),
        (lambda: hvd.broadcast_object("x", "0"), "root_rank is '0'"),
        (lambda: hvd.allgather_object("x", name=3), "name is 3"),
        (lambda: hvd.barrier("world"), "process_set is str"),
        (lambda: hvd.poll("handle"), "handle is str"),
        (lambda: hvd.poll([3]), "handle is list"),
        (lambda: hvd.synchronize(None), "handle is NoneType"),
        (lambda: hvd.synchronize(torch.ones(1)), "handle is Tensor"),
        (lambda: hvd.DistributedOptimizer("sgd"), "optimizer is str"),
        (lambda: distribute(named_parameters=3), "named_parameters is int"),
        (lambda: distribute(compression="fp16"), "compression is 'fp16'"),
        (lambda: distribute(op="sum"), "op is 'sum'"),
        (lambda: distribute(backward_passes_per_step=0.5), r"backward_passes_per_step is 0\.5"),
    ],
)
def test_arguments_of_a_wrong_type_are_named_in_one_line(call, message):
    with pytest.raises(TypeError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


def distribute(**options):
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    return hvd.DistributedOptimizer(optimizer, **options)


def test_names_that_utf8_cannot_say():
    for call in (
        lambda name: hvd.allreduce(torch.ones(1), name=name),
        lambda name: hvd.broadcast_object("x", name=name),
    ):
        with pytest.raises(ValueError, match="character 4 is a lone surrogate"):
            call("half\ud83d")
        with pytest.raises(ValueError, match="null character"):
            call("nul\0")


def test_wrong_splits():
    size = hvd.size()
    for splits in ([1] * (size + 1), [2 * size] * size, [[1] * size], [0.5] * size):
        with pytest.raises(ValueError, match="split"):
            hvd.alltoall(torch.ones(size), splits=splits)


def test_roots_and_scalars():
    with pytest.raises(ValueError, match="root"):
        hvd.broadcast(torch.ones(2), hvd.size())
    with pytest.raises(ValueError):
        hvd.reducescatter(torch.tensor(1.0))
    with pytest.raises(HorovodInternalError):
        hvd.allgather(torch.tensor(1.0))


def test_a_set_that_is_not_registered():
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(torch.ones(2), process_set=hvd.ProcessSet([0]))


def test_without_init():
    handle = hvd.allreduce_async(torch.ones(2))
    hvd.synchronize(handle)
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.rank()
    for call in (
        lambda: hvd.allreduce(torch.ones(2)),
        lambda: hvd.broadcast_(torch.ones(2), 0),
        hvd.barrier,
        hvd.join,
    ):
        with pytest.raises(HorovodInternalError):
            call()


def test_shutdown_fails_what_is_in_flight(two_ranks):
    handle = hvd.allreduce_async(torch.ones(2), name="never") if first() else None
    hvd.barrier()
    hvd.shutdown()
    if handle is not None:
        with pytest.raises(HorovodInternalError):
            hvd.synchronize(handle)
