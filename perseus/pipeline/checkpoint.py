"""The weights of a pipeline in files: one for each stage, and one that says how it was split.

    FOLDER/pipeline.json   the format, the stages and the names in each, the number of the save
    FOLDER/stage-0.pt ...  the parameters and buffers of a stage, by their names in the whole model

A pipeline that is split in another way finds its names in whichever files have them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from perseus.pipeline.plan import Plan
from perseus.pipeline.values import described

__all__ = ["load", "read", "stage_state", "write_stages", "write_summary"]

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


def write_stages(plan: Plan, folder: Path, number: str) -> dict[int, list[str]]:
    """Writes the files of this rank's stages, and returns the names in each."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {}
    for stage in plan.modules:
        state = stage_state(plan, stage)
        file = folder / f"stage-{stage}.pt"
        part = file.with_suffix(".part")
        with part.open("wb") as out:
            torch.save({"save": number, "state": state}, out)
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
        names[stage] = list(state)
    return names


def write_summary(plan: Plan, folder: Path, number: str, names: Mapping[int, list[str]]) -> None:
    """Writes the file that says how the pipeline was split, once all others have been written."""
    summary = {
        "format": _FORMAT,
        "save": number,
        "stages": [names[stage] for stage in range(plan.stages)],
    }
    part = folder / "pipeline.part"
    part.write_text(json.dumps(summary, indent=1) + "\n")
    part.replace(folder / "pipeline.json")


def read(plan: Plan, folder: Path) -> dict[str, torch.Tensor]:
    """Returns what this rank's stages need, by names in the whole model.

    Raises ValueError if the files are not those of one whole save, or lack a name.
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
    state: dict[str, torch.Tensor] = {}
    for stage in sorted({homes[name] for name in wanted}):
        file = folder / f"stage-{stage}.pt"
        saved = torch.load(file, map_location="cpu", weights_only=True)
        if saved["save"] != summary["save"]:
            raise ValueError(
                f"{file} and {folder}/pipeline.json are of different saves, of which one has not "
                "ended; take another checkpoint"
            )
        state |= saved["state"]
    check(plan, state)
    return state


def _summary(folder: Path) -> Any:
    file = folder / "pipeline.json"
    if not file.exists():
        raise ValueError(
            f"{folder} has no pipeline.json; it must be what Pipeline.save has written"
        )
    summary = json.loads(file.read_text())
    if summary.get("format") != _FORMAT:
        raise ValueError(f"{file} has format {summary.get('format')}; it must be {_FORMAT}")
    return summary
