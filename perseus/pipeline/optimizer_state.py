"""The memory of an optimizer, by the names of parameters, so that it fits another split.

torch.optim counts parameters; a stage on another rank, or another split, would count others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from perseus.pipeline.plan import Plan
from perseus.pipeline.values import described

__all__ = ["OptimizerState", "by_name", "for_optimizer"]

#: "state": what is remembered of each parameter that has been updated, by name; "groups": the names
#: in each group as "params", beside its options, such as the learning rate.
OptimizerState: TypeAlias = "dict[str, Any]"

#: Of a group, what is no option.
_NAMES = ("params", "param_names")


def by_name(plan: Plan, optimizer: torch.optim.Optimizer) -> dict[int, OptimizerState]:
    """Returns what an optimizer of this rank's parameters remembers, by stage.

    Raises ValueError if it has another parameter.
    """
    names = {stage: _names(plan, [stage]) for stage in plan.modules}
    known = {parameter for own in names.values() for parameter in own}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in known:
                raise ValueError(
                    f"the optimizer has a parameter {described(parameter)} that is in no stage of "
                    "this rank; it must be one of the pipeline's parameters"
                )
    return {stage: _of_stage(optimizer, own) for stage, own in names.items()}


def _of_stage(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.nn.Parameter, list[str]]
) -> OptimizerState:
    state, groups = {}, []
    for group in optimizer.param_groups:
        own = [one for one in group["params"] if one in names]
        for parameter in own:
            if parameter in optimizer.state:
                state.update(dict.fromkeys(names[parameter], optimizer.state[parameter]))
        if own:
            held = [name for parameter in own for name in names[parameter]]
            groups.append({**_options(group), "params": held})
    return {"state": state, "groups": groups}


def for_optimizer(
    plan: Plan, optimizer: torch.optim.Optimizer, saved: Sequence[OptimizerState]
) -> dict[str, Any]:
    """Returns what optimizer.load_state_dict takes, from what stages have saved.

    Raises ValueError if a parameter is missing, or if one group has parameters that were saved in
    groups with different options.
    """
    names = _names(plan, plan.modules)
    states = {name: one for part in saved for name, one in part["state"].items()}
    options = {
        name: _options(group)
        for part in saved
        for group in part["groups"]
        for name in group["params"]
    }
    state: dict[int, Any] = {}
    groups = []
    count = 0
    for group in optimizer.param_groups:
        found: tuple[str, dict[str, Any]] | None = None
        for number, parameter in enumerate(group["params"], count):
            own = names.get(parameter, ["a parameter that is in no stage"])
            name = next((one for one in own if one in options), None)
            if name is None:
                raise ValueError(
                    f"the checkpoint has no optimizer's state of {own[0]}; the optimizer must have "
                    "the parameters of the one that was saved"
                )
            if found and not _same(found[1], options[name]):
                raise ValueError(
                    f"{found[0]} and {name} are in one group of the optimizer, and were saved in "
                    "groups with different options; make the groups that were saved"
                )
            found = name, options[name]
            if name in states:
                state[number] = states[name]
        count += len(group["params"])
        kept = {key: group[key] for key in _NAMES if key in group}
        numbers = list(range(count - len(group["params"]), count))
        groups.append({**(found[1] if found else _options(group)), **kept, "params": numbers})
    return {"state": state, "param_groups": groups}


def _names(plan: Plan, stages: Any) -> dict[torch.nn.Parameter, list[str]]:
    """Returns all names in the whole model of the parameters of stages on this rank."""
    found: dict[torch.nn.Parameter, list[str]] = {}
    for stage in stages:
        for name, parameter in plan.modules[stage].named_parameters(remove_duplicate=False):
            found.setdefault(parameter, []).append(plan.full_name(stage, name))
    return found


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _NAMES}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return bool(torch.equal(torch.as_tensor(one), torch.as_tensor(other)))
    return bool(one == other)
