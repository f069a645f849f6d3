"""The variables that make up the state of a model and of its optimizer."""

from __future__ import annotations

from typing import Any

__all__ = ["build_optimizer", "model_variables", "optimizer_variables", "without_repeats"]


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
