"""The arguments of a pipeline, checked on this rank and compared with those of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import perseus.torch.horovod as hvd
from perseus.pipeline.agreement import together
from perseus.pipeline.balance import balanced_starts, layer_seconds
from perseus.pipeline.codecs import Codec, find_codec
from perseus.pipeline.mesh import Mesh, find_mesh
from perseus.pipeline.routes import Routes
from perseus.pipeline.same import require_same
from perseus.pipeline.schedules import Schedule, find_schedule
from perseus.pipeline.split import Divisible, divisible, made
from perseus.pipeline.tied import Entry, TiedWeights, shared_parameters
from perseus.pipeline.traced import TracedStage
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
    device: Any


@dataclass(frozen=True)
class Plan:
    """What the ranks have agreed on.

    Attributes:
      modules: of the stages on this rank, by stage.
      points: where the stages after the first of a split module begin; None for a list of stages.
      own_stages: of each rank of the world.
    """

    mesh: Mesh
    replica: int
    place: int
    schedule: Schedule
    microbatches: int
    stages: int
    modules: dict[int, torch.nn.Module]
    points: list[Any] | None
    own_stages: list[list[int]]
    codecs: tuple[Codec | None, Codec | None]
    tied: list[list[Entry]]
    routes: Routes

    def full_name(self, stage: int, name: str) -> str:
        """Returns the name in the whole model of a parameter or buffer of a stage."""
        return f"{stage}.{name}" if self.points is None else name


def agree_on_plan(given: Arguments) -> Plan:
    """Makes this rank's plan. All ranks must call it.

    Raises ValueError or TypeError, on all ranks, if the arguments of one are wrong or they differ.
    """
    mesh = find_mesh_together(given)
    whole: list[Divisible] = []

    def measure() -> list[float]:
        if isinstance(given.stages, torch.nn.Module):
            whole.append(_whole(given))
            if given.split == "balanced":
                return layer_seconds(whole[0].cut(whole[0].candidates()), given.sample)
        return []

    measured = together(measure)
    found: list[Plan] = []

    def plan() -> dict[str, Any]:
        found.append(_planned(given, mesh, whole[0] if whole else None, measured))
        return _described(given, found[0])

    require_same(together(plan))
    return found[0]


def find_mesh_together(given: Arguments) -> Mesh:
    """Returns the mesh, which all ranks must have alike."""
    meshes = together(lambda: find_mesh(given.mesh, hvd.size()))
    require_same([{"mesh": mesh.rows} for mesh in meshes])
    return meshes[hvd.rank()]


def _whole(given: Arguments) -> Divisible:
    """Returns the module that is to be split."""
    if given.split is None:
        raise ValueError(
            "split is None; for a module it must name the submodules at which stages after the "
            'first begin, or be "balanced"'
        )
    if isinstance(given.split, str) and given.split != "balanced":
        raise ValueError(
            f'split is {given.split!r}; it must be "balanced", or a list of submodules such as '
            f"[{given.split!r}]"
        )
    if given.split == "balanced" and given.sample is None:
        raise ValueError('sample is None; with split="balanced" it must be a micro-batch\'s input')
    device = None if given.device is None else torch.device(given.device)
    return divisible(given.stages, given.split, given.sample, device)


def _planned(
    given: Arguments, mesh: Mesh, whole: Divisible | None, measured: Sequence[list[float]]
) -> Plan:
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
    if whole is None:
        stages, points = _listed(given), None
    else:
        points = _points(given, whole, ranks, measured)
        stages = list(whole.cut(points))
    schedule = find_schedule(given.schedule, len(stages), ranks, microbatches)
    replica, place = mesh.place(hvd.rank())
    modules = {
        index: made(index, stage) for index, stage in enumerate(stages) if index % ranks == place
    }
    known = all(isinstance(stage, torch.nn.Module) for stage in stages)
    tied = _tied(given.tied, dict(enumerate(stages)) if known else {}, len(stages))
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
        points=points,
        own_stages=_own_stages(mesh, len(stages)),
        codecs=(find_codec(codecs[0]), find_codec(codecs[1])),
        tied=tied,
        routes=Routes(
            mesh.rows[replica], len(stages), microbatches, TiedWeights.messages(tied, ranks)
        ),
    )


def _points(
    given: Arguments, whole: Divisible, ranks: int, measured: Sequence[list[float]]
) -> list[Any]:
    """Returns where the stages after the first begin."""
    each = whole_number("stages_per_rank", given.stages_per_rank)
    if each < 1:
        raise ValueError(f"stages_per_rank is {each}; it must be 1 or more")
    if given.split != "balanced":
        return list(given.split)
    candidates = whole.candidates()
    return [candidates[start - 1] for start in balanced_starts(measured, ranks * each)[1:]]


def _listed(given: Arguments) -> list[Any]:
    """Returns the stages of a list."""
    if not isinstance(given.stages, (list, tuple)) or not given.stages:
        raise TypeError(
            f"stages is {type(given.stages).__name__}; it must be a list with a module for each "
            "stage, or a module to be split"
        )
    if given.split is not None:
        raise ValueError(f"split is {given.split!r}; with a list of stages it must be None")
    for index, stage in enumerate(given.stages):
        if not callable(stage):
            raise TypeError(
                f"stage {index} is {type(stage).__name__}; it must be a torch.nn.Module, or a "
                "function that makes one"
            )
    return list(given.stages)


def _tied(tied: Any, modules: dict[int, torch.nn.Module], stages: int) -> list[list[Entry]]:
    """Returns the groups of tied parameters: those that were given, or those that are shared."""
    if tied is None:
        return shared_parameters(modules)
    try:
        groups = [
            [(whole_number("stage", stage), str(name)) for stage, name in one] for one in tied
        ]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"tied is {tied!r}; it must be a list of groups, each a list of pairs such as "
            '(0, "weight")'
        ) from error
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
    if plan.points is not None:
        found["the split"] = f"at {', '.join(map(str, plan.points)) or 'nothing'}"
    if any(isinstance(module, TracedStage) for module in plan.modules.values()):
        found["sample"] = described(given.sample)
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
