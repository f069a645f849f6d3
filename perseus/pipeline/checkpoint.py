"""A pipeline in files: one for each stage, and one that says how it was split.

    FOLDER/pipeline.json   the format, the stages and the names in each, the number of the save,
                           and whether an optimizer's state is there
    FOLDER/stage-0.pt ...  the parameters and buffers of a stage, and what the optimizer remembers
                           of them, by their names in the whole model

A pipeline that is split in another way finds its names in whichever files have them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from perseus.pipeline.errors import one_line
from perseus.pipeline.optimizer_state import by_name, for_optimizer
from perseus.pipeline.plan import Plan
from perseus.pipeline.values import described

__all__ = ["load", "read", "require_all", "stage_state", "write_stages", "write_summary"]

_FORMAT = 1


def stage_state(plan: Plan, stage: int) -> dict[str, torch.Tensor]:
    """Returns parameters and buffers of a stage, by their names in the whole model."""
    return {
        plan.full_name(stage, name): tensor
        for name, tensor in plan.modules[stage].state_dict().items()
    }


def check(plan: Plan, state: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError unless a state has all of this rank's stages, in their shapes."""
    for stage in plan.modules:
        for name, tensor in stage_state(plan, stage).items():
            if name not in state:
                raise ValueError(f"stage {stage} has {name}, which the state lacks")
            if state[name].shape != tensor.shape:
                raise ValueError(
                    f"{name} of stage {stage} is {described(tensor)}, and {described(state[name])} "
                    "in the state; it must have the same shape"
                )


def load(plan: Plan, state: Mapping[str, torch.Tensor]) -> None:
    """Loads this rank's stages; raises what check does before anything is changed."""
    check(plan, state)
    for stage, module in plan.modules.items():
        module.load_state_dict(
            {name: state[plan.full_name(stage, name)] for name in module.state_dict()}
        )


def write_stages(
    plan: Plan, folder: Path, number: str, optimizer: torch.optim.Optimizer | None
) -> dict[int, list[str]]:
    """Writes the files of this rank's stages, and returns the names in each.

    Raises ValueError if they cannot be written, or the optimizer is not one of these stages.
    """
    remembered = {} if optimizer is None else by_name(plan, optimizer)
    names = {}
    for stage in plan.modules:
        state = stage_state(plan, stage)
        content = {"save": number, "state": state, "optimizer": remembered.get(stage)}
        file = folder / f"stage-{stage}.pt"
        part = file.with_suffix(".part")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as out:
                torch.save(content, out)
                out.flush()
                os.fsync(out.fileno())
            part.replace(file)
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{file} cannot be written: {one_line(error)}") from error
        names[stage] = list(state)
    return names


def write_summary(
    plan: Plan, folder: Path, number: str, names: Mapping[int, list[str]], has_optimizer: bool
) -> None:
    """Writes the file that says how the pipeline was split, once all others have been written."""
    summary = {
        "format": _FORMAT,
        "save": number,
        "optimizer": has_optimizer,
        "stages": [names[stage] for stage in range(plan.stages)],
    }
    part = folder / "pipeline.part"
    part.write_text(json.dumps(summary, indent=1) + "\n")
    part.replace(folder / "pipeline.json")


@dataclass(frozen=True)
class Found:
    """The part of a checkpoint that a rank has read.

    Attributes:
      state: of its stages, by names in the whole model.
      optimizer: what its optimizer loads; None without one.
      wanted, others: the names in its stages, and those in the files that are not.
    """

    state: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None
    wanted: list[str]
    others: list[str]


def read(plan: Plan, folder: Path, optimizer: torch.optim.Optimizer | None) -> Found:
    """Returns what this rank's stages and their optimizer need.

    Raises ValueError if the files are not those of one whole save, or lack something.
    """
    summary = _summary(folder)
    homes = {name: stage for stage, names in enumerate(summary["stages"]) for name in names}
    wanted = {name: stage for stage in plan.modules for name in stage_state(plan, stage)}
    missing = [name for name in wanted if name not in homes]
    if missing:
        raise ValueError(
            f"{folder} was saved with {len(summary['stages'])} stages, of which none has "
            f"{missing[0]} of this pipeline's stage {wanted[missing[0]]}. A checkpoint fits other "
            "splits of the same module; that of a list of stages fits the same list"
        )
    if optimizer is not None and not summary.get("optimizer"):
        raise ValueError(
            f"{folder} was saved without an optimizer; give one to save, or none to load"
        )
    stages = sorted({homes[name] for name in wanted})
    parts = [_stage(folder, stage, summary["save"]) for stage in stages]
    state = {name: tensor for part in parts for name, tensor in part["state"].items()}
    check(plan, state)
    remembered = None
    if optimizer is not None:
        remembered = for_optimizer(plan, optimizer, [part["optimizer"] for part in parts])
    return Found(state, remembered, list(wanted), [name for name in homes if name not in wanted])


def require_all(folder: Path, wanted: Iterable[str], others: Iterable[str]) -> None:
    """Raises ValueError if files have names, of which those that a rank does not want are given,
    that no rank wants."""
    known = set(wanted)
    unknown = [name for name in others if name not in known]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ValueError(
            f"{folder} has {unknown[0]}{more}, which no stage of this pipeline has; it must be the "
            "checkpoint of the same model"
        )


def _stage(folder: Path, stage: int, number: str) -> Any:
    file = folder / f"stage-{stage}.pt"
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the file's content chooses which
        raise ValueError(f"{file} cannot be read: {one_line(error)}") from error
    if saved["save"] != number:
        raise ValueError(
            f"{file} and {folder}/pipeline.json are of different saves, of which one has not "
            "ended; take another checkpoint"
        )
    return saved


def _summary(folder: Path) -> Any:
    file = folder / "pipeline.json"
    if not file.exists():
        raise ValueError(
            f"{folder} has no pipeline.json; it must be what Pipeline.save has written"
        )
    try:
        summary = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {one_line(error)}") from error
    if summary.get("format") != _FORMAT:
        raise ValueError(f"{file} has format {summary.get('format')}; it must be {_FORMAT}")
    return summary
