"""The variables that make up the state of a model and of its optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = [
    "build_optimizer",
    "model_variables",
    "optimizer_variables",
    "slots_of",
    "without_repeats",
]

# An optimizer's lists of other variables.
_NO_SLOTS = ("_variables", "_trainable_variables")


def model_variables(model: Any) -> list[Any]:
    """Returns weights and the states of random generators, without variables of metrics."""
    metrics = {id(each) for metric in model.metrics for each in metric.variables}
    return without_repeats(each for each in model.variables if id(each) not in metrics)


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Returns the variables that exist; the first step, or build_optimizer, creates slots.

    For Keras 2 these include learning rates and loss scales, which its optimizers do not list.
    """
    if optimizer is None:
        return []
    listed = optimizer.variables
    found = list(listed() if callable(listed) else listed)
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    hyper = getattr(inner, "_hyper", {})
    found += [hyper[name] for name in sorted(hyper)]
    found.append(getattr(inner, "_learning_rate", None))
    scale = getattr(optimizer, "_loss_scale", None)
    found += [getattr(scale, "current_loss_scale", None), getattr(scale, "counter", None)]
    return without_repeats(each for each in found if hasattr(each, "assign"))


def slots_of(optimizer: Any, variables: Iterable[Any]) -> list[Any]:
    """Returns the optimizer's variables that belong to some of the model's, such as momenta."""
    if optimizer is None:
        return []
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    if hasattr(inner, "get_slot_names"):  # a legacy optimizer of Keras 2
        return [slot for each in variables for slot in _legacy_slots(inner, each)]
    places = getattr(inner, "_trainable_variables_indices", None) or getattr(
        inner, "_index_dict", {}
    )
    # Optimizers keep their slots in lists, in the order of the model's variables.
    lists = [
        each
        for name, each in vars(inner).items()
        if isinstance(each, (list, tuple)) and len(each) == len(places) and name not in _NO_SLOTS
    ]
    found = [places.get(inner._var_key(each)) for each in variables] if places else []
    return [each[i] for i in found if i is not None for each in lists if each[i] is not None]


def _legacy_slots(optimizer: Any, variable: Any) -> Iterator[Any]:
    for name in optimizer.get_slot_names():
        with contextlib.suppress(KeyError):
            yield optimizer.get_slot(variable, name)


def build_optimizer(optimizer: Any, model: Any) -> None:
    """Creates the optimizer's variables for a model's weights."""
    if optimizer is None:
        return
    weights = list(model.trainable_variables)
    if not weights:
        return
    if hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(weights)
    elif not getattr(optimizer, "built", False):
        optimizer.build(weights)


def without_repeats(variables: Any) -> list[Any]:
    return list({id(each): each for each in variables}.values())
