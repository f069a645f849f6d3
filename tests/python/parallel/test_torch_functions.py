"""Model, optimizer and object state made the same on all ranks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402
import perseus_core  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


def own_model() -> torch.nn.Module:
    torch.manual_seed(hvd.rank())
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))


def same_on_all_ranks(tensors) -> bool:
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    gathered = hvd.allgather(flat[None])
    return bool((gathered == gathered[0]).all())


@pytest.mark.parametrize(
    "params",
    [
        lambda model: model.state_dict(),
        lambda model: list(model.named_parameters()),
        lambda model: model.named_parameters(),
        lambda model: list(model.parameters()),
    ],
    ids=["state_dict", "named list", "generator", "list"],
)
def test_broadcast_parameters(params):
    root = hvd.size() - 1
    model = own_model()
    expected = torch.nn.Linear(4, 5)
    torch.manual_seed(root)
    expected.reset_parameters()
    hvd.broadcast_parameters(params(model), root_rank=root)
    assert same_on_all_ranks(model.parameters())
    torch.manual_seed(root)
    assert torch.equal(model[0].weight, torch.nn.Linear(4, 5).weight)


def test_broadcast_parameters_refuses_what_is_none():
    for params in (3, torch.ones(2), [("name", "value")]):
        with pytest.raises(ValueError, match="invalid params"):
            hvd.broadcast_parameters(params, root_rank=0)


@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam"]
)
def test_broadcast_optimizer_state(name):
    root = hvd.size() - 1
    model = own_model()
    options = {"lr": 0.5 if hvd.rank() == root else 0.1}
    if name == "SGD":
        options["momentum"] = 0.9
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    if hvd.rank() == root:  # the others have no state yet
        for _ in range(3):
            model(torch.randn(6, 4)).square().sum().backward()
            optimizer.step()
    before = [param.detach().clone() for param in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root)
    assert optimizer.param_groups[0]["lr"] == 0.5
    tensors = [
        value
        for param in model.parameters()
        for _, value in sorted(optimizer.state[param].items())
        if isinstance(value, torch.Tensor)
    ]
    assert len(tensors) >= len(before)
    assert same_on_all_ranks(tensors)
    for param, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(param, old)
    model(torch.randn(6, 4)).square().sum().backward()
    optimizer.step()


def test_broadcast_state_of_a_distributed_optimizer():
    model = own_model()
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    model(torch.ones(6, 4) * torch.randn(4)).square().sum().backward()
    optimizer.step()
    assert same_on_all_ranks(model.parameters())


def test_lbfgs_state_is_refused():
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.ones(1, requires_grad=True)]), 0)


def test_broadcast_object():
    for root in range(hvd.size()):
        obj = {"rank": hvd.rank(), "list": [1, None, "text"], "big": "x" * 100_000}
        result = hvd.broadcast_object(obj, root_rank=root)
        assert result == {**obj, "rank": root}
        assert (result is obj) == (hvd.rank() == root)


def test_broadcast_object_of_different_types_without_a_name():
    obj = {"only": "here"} if hvd.rank() == 0 else None
    assert hvd.broadcast_object(obj, 0) == {"only": "here"}


def test_allgather_object():
    objects = hvd.allgather_object({"rank": hvd.rank(), "pad": "x" * 1000 * hvd.rank()})
    assert [obj["rank"] for obj in objects] == list(range(hvd.size()))
    assert [len(obj["pad"]) for obj in objects] == [1000 * r for r in range(hvd.size())]


def test_functions_about_the_build():
    assert hvd.gloo_built() and hvd.gloo_enabled() == (not hvd.mpi_enabled())
    assert not hvd.rocm_built() and not hvd.ddl_built() and not hvd.ccl_built()
    assert not hvd.sycl_built()
    found = perseus_core.gpu_support()
    assert (hvd.cuda_built(), hvd.nccl_built()) == (found.cuda_driver > 0, found.nccl)
    assert hvd._check_has_gpu() == torch.cuda.is_available()


def test_the_timeline_is_written(tmp_path):
    path = tmp_path / "timeline.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    hvd.allreduce(torch.ones(5), name="timed")
    hvd.stop_timeline()
    hvd.barrier()
    if hvd.rank() == 0:
        assert "allreduce.timed" in path.read_text()


HOROVODS_NAMES = """
Average Sum Adasum Min Max Product init shutdown is_initialized rank size local_rank local_size
cross_rank cross_size mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
nccl_built ddl_built ccl_built cuda_built rocm_built start_timeline stop_timeline ProcessSet
global_process_set add_process_set remove_process_set allreduce allreduce_ allreduce_async
allreduce_async_ grouped_allreduce grouped_allreduce_ grouped_allreduce_async
grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async grouped_allgather
grouped_allgather_async broadcast broadcast_ broadcast_async broadcast_async_ alltoall
alltoall_async reducescatter reducescatter_async grouped_reducescatter
grouped_reducescatter_async join barrier poll synchronize allgather_object broadcast_object
broadcast_optimizer_state broadcast_parameters Compression DistributedOptimizer
HorovodInternalError
"""


def test_every_name_of_horovod_is_there():
    names = HOROVODS_NAMES.split()
    assert [name for name in names if not hasattr(hvd, name)] == []
    import perseus.torch

    assert [name for name in names if not hasattr(perseus.torch, name)] == []
