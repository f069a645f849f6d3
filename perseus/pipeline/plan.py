"""The arguments of a pipeline, checked on this rank and compared with those of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import perseus.torch.horovod as hvd
from perseus.pipeline.agreement import require_same, together
from perseus.pipeline.balance import balanced_starts, layer_seconds
from perseus.pipeline.codecs import Codec, find_codec
from perseus.pipeline.mesh import Mesh, find_mesh
from perseus.pipeline.routes import Routes
from perseus.pipeline.schedules import Schedule, find_schedule
from perseus.pipeline.split import cut_sequential, found_starts, made
from perseus.pipeline.tied import Entry, TiedWeights, shared_parameters
from perseus.pipeline.values import described
from perseus_core.arguments import whole_number

__all__ = ["Arguments", "Plan", "agree_on_plan"]


@dataclass(frozen=True)
class Arguments:
    """What Pipeline was given; see there."""

    stages: Any
    loss_fn: Any
    schedule: str
    microbatches: int
    split: Any
    sample: Any
    stages_per_rank: int
    mesh: Any
    codec: Any
    tied: Any
    loss_reduction: str


@dataclass(frozen=True)
class Plan:
    """What the ranks have agreed on.

    Attributes:
      modules: of the stages on this rank, by stage.
      first_children: the names of the children at which the stages of a split module begin; empty
        for a list of stages.
      own_stages: of each rank of the world.
    """

    mesh: Mesh
    replica: int
    place: int
    schedule: Schedule
    microbatches: int
    stages: int
    modules: dict[int, torch.nn.Module]
    first_children: list[str]
    own_stages: list[list[int]]
    codecs: tuple[Codec | None, Codec | None]
    tied: list[list[Entry]]
    routes: Routes

    def full_name(self, stage: int, name: str) -> str:
        """Returns the name in the whole model of a parameter or buffer of a stage."""
        return name if self.first_children else f"{stage}.{name}"


def agree_on_plan(given: Arguments) -> Plan:
    """Makes this rank's plan. All ranks must call it.

    Raises ValueError or TypeError, on all ranks, if the arguments of one are wrong or they differ.
    """
    mesh = find_mesh_together(given)
    measured = together(lambda: _measured(given))
    found: list[Plan] = []

    def plan() -> dict[str, Any]:
        found.append(_planned(given, mesh, measured))
        return _described(given, found[0])

    require_same(together(plan))
    return found[0]


def find_mesh_together(given: Arguments) -> Mesh:
    """Returns the mesh, which all ranks must have alike."""
    meshes = together(lambda: find_mesh(given.mesh, hvd.size()))
    require_same([{"mesh": mesh.rows} for mesh in meshes])
    return meshes[hvd.rank()]


def _measured(given: Arguments) -> list[float]:
    """Returns the seconds of each layer if the split is to be balanced, otherwise nothing."""
    if given.split != "balanced":
        return []
    if not isinstance(given.stages, torch.nn.Sequential):
        raise TypeError(
            f'stages is {type(given.stages).__name__}; with split="balanced" it must be a '
            "torch.nn.Sequential"
        )
    if given.sample is None:
        raise ValueError('sample is None; with split="balanced" it must be a micro-batch\'s input')
    return layer_seconds(given.stages, given.sample)


def _planned(given: Arguments, mesh: Mesh, measured: Sequence[list[float]]) -> Plan:
    if not callable(given.loss_fn):
        raise TypeError(
            f"loss_fn is {type(given.loss_fn).__name__}; it must be a function of output and target"
        )
    if given.loss_reduction not in ("mean", "sum"):
        raise ValueError(f'loss_reduction is {given.loss_reduction!r}; it must be "mean" or "sum"')
    microbatches = whole_number("microbatches", given.microbatches)
    if microbatches < 1:
        raise ValueError(f"microbatches is {microbatches}; it must be 1 or more")
    ranks = mesh.shape[1]
    stages, first_children = _stages(given, ranks, measured)
    schedule = find_schedule(given.schedule, len(stages), ranks, microbatches)
    replica, place = mesh.place(hvd.rank())
    modules = {
        index: made(index, stage) for index, stage in enumerate(stages) if index % ranks == place
    }
    whole = all(isinstance(stage, torch.nn.Module) for stage in stages)
    tied = _tied(given.tied, dict(enumerate(stages)) if whole else {}, len(stages))
    for group in tied:
        for index, name in group:
            if index in modules and name not in dict(modules[index].named_parameters()):
                raise ValueError(f"stage {index} has no parameter {name!r}, which tied names")
    codecs = given.codec if isinstance(given.codec, tuple) else (given.codec, given.codec)
    if len(codecs) != 2:
        raise ValueError(
            f"codec is {given.codec!r}; it must be one codec, or a pair: of activations, and of "
            "their gradients"
        )
    return Plan(
        mesh=mesh,
        replica=replica,
        place=place,
        schedule=schedule,
        microbatches=microbatches,
        stages=len(stages),
        modules=modules,
        first_children=first_children,
        own_stages=_own_stages(mesh, len(stages)),
        codecs=(find_codec(codecs[0]), find_codec(codecs[1])),
        tied=tied,
        routes=Routes(
            mesh.rows[replica], len(stages), microbatches, TiedWeights.messages(tied, ranks)
        ),
    )


def _stages(
    given: Arguments, ranks: int, measured: Sequence[list[float]]
) -> tuple[list[torch.nn.Module | Callable[[], Any]], list[str]]:
    """Returns the stages, and the names of the children at which they begin, if split."""
    if isinstance(given.stages, torch.nn.Module):
        if given.split is None:
            raise ValueError(
                "split is None; for a module it must name the children at which stages after the "
                'first begin, or be "balanced"'
            )
        if not isinstance(given.stages, torch.nn.Sequential):
            raise TypeError(
                f"stages is {type(given.stages).__name__}; it must be a torch.nn.Sequential to be "
                "split. Give other models as a list of modules, one for each stage"
            )
        each = whole_number("stages_per_rank", given.stages_per_rank)
        if each < 1:
            raise ValueError(f"stages_per_rank is {each}; it must be 1 or more")
        if given.split == "balanced":
            starts = balanced_starts(measured, ranks * each)
        else:
            starts = found_starts(given.stages, given.split)
        stages = cut_sequential(given.stages, starts)
        names = [name for name, _ in given.stages.named_children()]
        return list(stages), [names[start] for start in starts]
    if not isinstance(given.stages, (list, tuple)) or not given.stages:
        raise TypeError(
            f"stages is {type(given.stages).__name__}; it must be a list with a module for each "
            "stage, or a torch.nn.Sequential"
        )
    if given.split is not None:
        raise ValueError(f"split is {given.split!r}; with a list of stages it must be None")
    for index, stage in enumerate(given.stages):
        if not callable(stage):
            raise TypeError(
                f"stage {index} is {type(stage).__name__}; it must be a torch.nn.Module, or a "
                "function that makes one"
            )
    return list(given.stages), []


def _tied(tied: Any, modules: dict[int, torch.nn.Module], stages: int) -> list[list[Entry]]:
    """Returns the groups of tied parameters: those that were given, or those that are shared."""
    if tied is None:
        return shared_parameters(modules)
    groups = [[(whole_number("stage", stage), str(name)) for stage, name in one] for one in tied]
    for group in groups:
        if len(set(group)) < 2 or any(not 0 <= stage < stages for stage, _ in group):
            raise ValueError(
                f"tied has the group {group}; it must be two or more pairs of a stage, from 0 to "
                f"{stages - 1}, and the name of a parameter in it"
            )
    return groups


def _own_stages(mesh: Mesh, stages: int) -> list[list[int]]:
    ranks = mesh.shape[1]
    places = {rank: place for row in mesh.rows for place, rank in enumerate(row)}
    return [list(range(places[rank], stages, ranks)) for rank in range(len(places))]


def _described(given: Arguments, plan: Plan) -> dict[str, Any]:
    """Returns what must be the same on all ranks, by what it is called in errors."""
    found: dict[str, Any] = {
        "schedule": plan.schedule.name,
        "microbatches": plan.microbatches,
        "the number of stages": plan.stages,
        "the codec of activations": plan.codecs[0] and plan.codecs[0].name,
        "the codec of gradients": plan.codecs[1] and plan.codecs[1].name,
        "loss_reduction": given.loss_reduction,
        "the list of tied parameters": plan.tied,
    }
    if plan.first_children:
        found["the split"] = f"at {', '.join(plan.first_children)}"
    stages = given.stages if isinstance(given.stages, (list, tuple)) else []
    known = {i: one for i, one in enumerate(stages) if isinstance(one, torch.nn.Module)}
    for index, module in (known | plan.modules).items():
        found[f"the list of parameters of stage {index}"] = [
            f"{name} {described(parameter)}" for name, parameter in module.named_parameters()
        ]
    for number, group in enumerate(plan.tied):
        for index, name in group:
            if index in plan.modules:
                what = described(plan.modules[index].get_parameter(name))
                if found.setdefault(f"tied parameter {number}", what) != what:
                    raise ValueError(f"tied has the group {group}; its parameters must be alike")
    return found
