"""A model in stages of torch.distributed.pipelining, and the same model unsplit, in float64."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

#: All that the installed PyTorch has.
SCHEDULES = sorted(name for name in pipelining.__all__ if name.startswith("Schedule"))
#: Those with one stage a rank. The others have several.
WITH_ONE_STAGE = {"Schedule1F1B", "ScheduleGPipe"}
#: Those in which the last stage is on the first rank: 0 has stages 0 and 3, 1 has 1 and 2.
BACK_AND_FORTH = {"ScheduleDualPipeV", "ScheduleZBVZeroBubble"}
#: Those that compute the gradients of weights apart, without the hooks by which DDP learns of them.
WITHOUT_HOOKS = {"ScheduleDualPipeV", "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble"}

ROWS = 2  # of a micro-batch

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Distribute = Callable[[nn.Module], nn.Module]


class Block(nn.Module):
    """Each stage passes on rows of another width, so messages that change places do not fit."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.into = nn.Linear(5 + number, 7)
        self.out = nn.Linear(7, 6 + number)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.into(rows)))


def blocks(count: int) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*map(Block, range(count))).double()


def stages_of(schedule: str, rank: int, ranks: int, rounds: int = 2) -> list[int]:
    """Returns the stages of a rank; `rounds` is how many it has where it has several."""
    if schedule in WITH_ONE_STAGE:
        return [rank]
    if schedule in BACK_AND_FORTH:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + ranks * turn for turn in range(rounds)]


def shapes_of(stage: int, count: int) -> dict[str, tuple[torch.Tensor | None]]:
    """Returns what a stage of Blocks gets and gives, for PipelineStage."""

    def like(width: int, needs_gradient: bool) -> torch.Tensor:
        return torch.zeros(ROWS, width, dtype=torch.float64, requires_grad=needs_gradient)

    is_first, is_last = stage == 0, stage == count - 1
    return {
        "input_args": (like(5 + stage, not is_first),),
        "output_args": (like(6 + stage, True),),
        "input_grads": (None if is_first else like(5 + stage, False),),
        "output_grads": (None if is_last else like(6 + stage, False),),
    }


def batch(step: int, model: nn.Module, micro_batches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows of a step, and what the model should make of them."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randn(ROWS * micro_batches, 5, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        targets = model(rows)
    return rows, torch.randn(targets.shape, dtype=torch.float64, generator=generator)


class Pipeline:
    """The stages of this rank, in one of PyTorch's schedules."""

    def __init__(
        self,
        schedule: str,
        whole: nn.Sequential,
        group: dist.ProcessGroup | None = None,
        micro_batches: int | None = None,
        rounds: int = 2,
        distribute: Distribute = lambda module: module,
        loss: Loss = nn.functional.mse_loss,
        say_shapes: bool = False,
    ) -> None:
        """Makes the stages of this rank.

        Args:
          distribute: wraps a stage's module, for the ranks that have the same stages.
          say_shapes: stages are told what they get and give, and need not find out.
        """
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.numbers = stages_of(schedule, self.rank, self.ranks, rounds)
        self.count = len(self.numbers) * self.ranks
        assert len(whole) == self.count
        self.micro_batches = micro_batches or 2 * self.count
        self.modules = [distribute(copy.deepcopy(whole[number])) for number in self.numbers]
        stages = [
            pipelining.PipelineStage(
                module,
                number,
                self.count,
                torch.device("cpu"),
                group=group,
                **(shapes_of(number, self.count) if say_shapes else {}),
            )
            for number, module in zip(self.numbers, self.modules, strict=True)
        ]
        self.schedule = getattr(pipelining, schedule)(
            stages[0] if schedule in WITH_ONE_STAGE else stages, self.micro_batches, loss_fn=loss
        )

    @property
    def is_first(self) -> bool:
        return 0 in self.numbers

    @property
    def is_last(self) -> bool:
        return self.count - 1 in self.numbers

    def step(
        self, rows: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Returns the output and the micro-batches' losses, where the last stage is."""
        losses: list[torch.Tensor] = []
        output = self.schedule.step(
            *([rows] if self.is_first else []),
            target=targets if self.is_last else None,
            losses=losses,
        )
        return output, losses


def train(pipeline: Pipeline, whole: nn.Sequential, steps: int = 2, replicas: int = 1) -> None:
    """Trains both, and compares outputs, losses, gradients and weights in each step.

    Args:
      whole: the unsplit model, which gets the rows of all replicas.
      replicas: how many pipelines there are; ranks are numbered row by row.
    """
    mine = dist.get_rank() // pipeline.ranks if replicas > 1 else 0
    ours = [torch.optim.SGD(module.parameters(), lr=0.1) for module in pipeline.modules]
    alone = torch.optim.SGD(whole.parameters(), lr=0.1)
    for step in range(steps):
        batches = [
            batch(100 * step + replica, whole, pipeline.micro_batches)
            for replica in range(replicas)
        ]
        for optimizer in (*ours, alone):
            optimizer.zero_grad()
        output, losses = pipeline.step(*batches[mine])
        expected = [whole(rows) for rows, _ in batches]
        errors = [
            nn.functional.mse_loss(made, targets)
            for made, (_, targets) in zip(expected, batches, strict=True)
        ]
        torch.stack(errors).mean().backward()
        if pipeline.is_last:
            assert output is not None
            close(output, expected[mine])
            assert len(losses) == pipeline.micro_batches
            close(torch.stack(losses).mean(), errors[mine])
        same_gradients(pipeline, whole)
        for optimizer in (*ours, alone):
            optimizer.step()
    for parameter, reference in pairs(pipeline, whole):
        close(complete(parameter), reference)


def same_gradients(pipeline: Pipeline, whole: nn.Sequential) -> None:
    for parameter, reference in pairs(pipeline, whole):
        assert parameter.grad is not None and reference.grad is not None
        close(complete(parameter.grad), reference.grad)


def pairs(
    pipeline: Pipeline, whole: nn.Sequential
) -> itertools.chain[tuple[torch.Tensor, torch.Tensor]]:
    """Returns each parameter of the stages with the one of the unsplit model."""
    return itertools.chain.from_iterable(
        zip(module.parameters(), whole[number].parameters(), strict=True)
        for number, module in zip(pipeline.numbers, pipeline.modules, strict=True)
    )


def complete(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor that may be in shards; all ranks that have one call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-13)
