"""The schedules of torch.distributed.pipelining give what the unsplit model gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch_groups import group, rank, size

pipelining = pytest.importorskip("torch.distributed.pipelining")

from torch_pipelines import (  # noqa: E402  it needs pipelining
    BACK_AND_FORTH,
    SCHEDULES,
    WITH_ONE_STAGE,
    WITHOUT_HOOKS,
    Pipeline,
    batch,
    blocks,
    close,
    pairs,
    stages_of,
    train,
)

__all__ = ["group"]  # which every test uses

# PyTorch's own, where it traces a model and where a schedule ends with gradients of its own.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

SEVERAL_STAGES = [name for name in SCHEDULES if name not in WITH_ONE_STAGE | BACK_AND_FORTH]


def model_for(schedule: str, ranks: int, rounds: int = 2) -> nn.Sequential:
    return blocks(ranks * len(stages_of(schedule, 0, ranks, rounds)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_of_all_ranks(schedule: str) -> None:
    whole = model_for(schedule, size())
    train(Pipeline(schedule, whole), whole)


@pytest.mark.parametrize("schedule", SEVERAL_STAGES)
def test_three_stages_a_rank(schedule: str) -> None:
    whole = model_for(schedule, size(), rounds=3)
    train(Pipeline(schedule, whole, rounds=3, micro_batches=6 * size()), whole)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_evaluation_between_steps(schedule: str) -> None:
    if schedule in BACK_AND_FORTH or (size() == 1 and schedule not in WITH_ONE_STAGE):
        pytest.skip("PyTorch cannot evaluate where a rank has two stages in succession")
    whole = model_for(schedule, size())
    pipeline = Pipeline(schedule, whole)
    for step in range(2):
        train(pipeline, whole, steps=1)
        rows, targets = batch(7 + step, whole, pipeline.micro_batches)
        with torch.no_grad():
            output = pipeline.schedule.eval(
                *([rows] if pipeline.is_first else []),
                target=targets if pipeline.is_last else None,
            )
            if pipeline.is_last:
                close(output, whole(rows))


@pytest.mark.parametrize("schedule", ["Schedule1F1B", "ScheduleDualPipeV"])
def test_stages_in_a_group_of_some_ranks(schedule: str) -> None:
    if schedule not in SCHEDULES:
        pytest.skip("this PyTorch lacks the schedule")
    members = list(range(size() // 2, size()))  # their ranks in the group are others
    some = dist.new_group(members)
    if rank() in members:
        whole = model_for(schedule, len(members))
        train(Pipeline(schedule, whole, some), whole)
        dist.destroy_process_group(some)


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.factor


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_activations_that_no_rank_keeps_unasked(schedule: str) -> None:
    """Each is larger than PERSEUS_MESSAGE_CREDIT, so its sender waits for the receive."""
    count = len(model_for(schedule, size()))
    whole = nn.Sequential(*(Scale(1 + number / 8) for number in range(count))).double()
    pipeline = Pipeline(
        schedule, whole, micro_batches=count, loss=lambda output, target: (output * target).mean()
    )
    rows = torch.linspace(-1, 1, count * 530_000, dtype=torch.float64).view(count, -1)
    targets = rows + 1
    pipeline.step(rows, targets)
    (whole(rows) * targets).mean().backward()
    for parameter, reference in pairs(pipeline, whole):
        torch.testing.assert_close(parameter.grad, reference.grad, rtol=1e-10, atol=1e-12)


class Fork(nn.Module):
    """Passes on two tensors, of different shapes and types."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(
        self, rows: torch.Tensor, scale: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if scale is None:
            scale = rows.sum(1).float()
        return torch.tanh(self.layer(rows)) * scale[:, None].double(), scale * 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_several_tensors_between_stages(schedule: str) -> None:
    torch.manual_seed(4)
    count = len(model_for(schedule, size()))
    whole = nn.Sequential(*(Fork() for _ in range(count))).double()

    def loss(output: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output[0] + output[1][:, None], target)

    pipeline = Pipeline(schedule, whole, loss=loss)
    rows = batch(1, nn.Identity(), pipeline.micro_batches)[0]
    pipeline.step(rows, 2 * rows)
    passed: tuple[torch.Tensor, ...] = (rows,)
    for module in whole:
        passed = module(*passed)
    loss((passed[0], passed[1]), 2 * rows).backward()
    for parameter, reference in pairs(pipeline, whole):
        torch.testing.assert_close(parameter.grad, reference.grad, rtol=1e-5, atol=1e-6)


class Chain(nn.Module):
    """With `skips`, a tensor of the first layer goes to the last one, past the stages between."""

    def __init__(self, layers: int, skips: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(layers))
        self.skips = skips

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        passed = torch.tanh(self.layers[0](rows))
        beside = 2 * passed if self.skips else None
        for layer in self.layers[1:]:
            passed = torch.tanh(layer(passed))
        return passed if beside is None else passed + beside


def traced(whole: Chain, rows: torch.Tensor) -> list[Any]:
    """Returns the stages of this rank of a model that PyTorch splits before each layer."""
    count = len(whole.layers)
    split = {f"layers.{i}": pipelining.SplitPoint.BEGINNING for i in range(1, count)}
    pipe = pipelining.pipeline(copy.deepcopy(whole), mb_args=(rows,), split_spec=split)
    assert pipe.num_stages == count
    return [
        pipe.build_stage(number, torch.device("cpu")) for number in range(rank(), count, size())
    ]


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name not in BACK_AND_FORTH])
def test_a_model_that_pytorch_splits(schedule: str) -> None:
    if size() == 1 and schedule not in WITH_ONE_STAGE:
        pytest.skip("PyTorch has the stages of a split model send to each other, also on one rank")
    count = len(model_for(schedule, size()))
    torch.manual_seed(5)
    # With several stages a rank, PyTorch's messages for different stages would change places.
    whole = Chain(count, skips=schedule in WITH_ONE_STAGE).double()
    micro_batches = 2 * count
    rows, targets = batch(3, nn.Identity(), micro_batches)
    stages = traced(whole, rows[:2])
    run = getattr(pipelining, schedule)(
        stages[0] if schedule in WITH_ONE_STAGE else stages,
        micro_batches,
        loss_fn=nn.functional.mse_loss,
    )
    is_last = stages[-1].is_last
    losses: list[torch.Tensor] = []
    for _ in range(2):
        for stage in stages:
            stage.submod.zero_grad()
        output = run.step(
            *([rows] if rank() == 0 else []), target=targets if is_last else None, losses=losses
        )
    expected = whole(rows)
    error = nn.functional.mse_loss(expected, targets)
    error.backward()
    if is_last:
        close(output, expected)
        close(torch.stack(losses).mean(), error)
    references = dict(whole.named_parameters())
    for stage in stages:
        for name, parameter in stage.submod.named_parameters():
            close(parameter.grad, references[name].grad)


@pytest.fixture(scope="module")
def mesh(group: None) -> dist.device_mesh.DeviceMesh:
    """Two pipelines, or as many as ranks where their number is odd.

    It is made once: PyTorch goes on using the groups of the first of equal meshes.
    """
    data = 2 if size() % 2 == 0 else size()
    shape = (data, size() // data)
    return dist.init_device_mesh("cpu", shape, mesh_dim_names=("data", "pipeline"))


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name not in WITHOUT_HOOKS])
def test_replicas_by_ddp(mesh: dist.device_mesh.DeviceMesh, schedule: str) -> None:
    stages, replicas = mesh.get_group("pipeline"), mesh.get_group("data")
    whole = model_for(schedule, dist.get_world_size(stages))

    def replicated(module: nn.Module) -> nn.Module:
        return nn.parallel.DistributedDataParallel(module, process_group=replicas)

    # A DDP that has been used to find out shapes raises an internal error in the second step.
    pipeline = Pipeline(schedule, whole, stages, len(whole), distribute=replicated, say_shapes=True)
    train(pipeline, whole, replicas=mesh.size(0))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_replicas_in_shards(mesh: dist.device_mesh.DeviceMesh, schedule: str) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    stages = mesh.get_group("pipeline")
    whole = model_for(schedule, dist.get_world_size(stages))

    def sharded(module: nn.Module) -> nn.Module:
        return fsdp.fully_shard(module, mesh=mesh["data"])

    pipeline = Pipeline(schedule, whole, stages, len(whole), distribute=sharded)
    train(pipeline, whole, replicas=mesh.size(0))


def test_a_number_and_a_vector_of_one_are_reduced_together() -> None:
    """DeepSpeed's pipelines do that with the loss."""
    tensor = torch.tensor(2.0) if rank() == 0 else torch.tensor([2.0])
    dist.all_reduce(tensor)
    assert tensor.item() == 2.0 * size()
    assert tensor.dim() == (0 if rank() == 0 else 1)
