"""Finds the cuts of a module for which its slowest stage is as fast as can be."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from perseus.pipeline.errors import one_line
from perseus.pipeline.stage import changeable
from perseus.pipeline.values import described, mapped, tensors_of

__all__ = ["balanced_starts", "layer_seconds"]

_TIMES = 3


def layer_seconds(layers: Sequence[torch.nn.Module], sample: Any) -> list[float]:
    """Returns how long forward and backward of each layer take for a sample, a micro-batch's input.

    The least of a few times counts. Parameters' gradients are as before afterwards, and so are
    buffers, such as those of batch normalisation.
    """
    gradients = [(one, one.grad) for layer in layers for one in layer.parameters()]
    buffers = [(one, one.clone()) for layer in layers for one in layer.buffers()]
    try:
        found = [_seconds(layers, sample) for _ in range(_TIMES)]
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    return [min(times) for times in zip(*found, strict=True)]


def _seconds(layers: Sequence[torch.nn.Module], sample: Any) -> list[float]:
    value = sample
    seconds = []
    for parameter in (one for layer in layers for one in layer.parameters()):
        parameter.grad = None
    for number, layer in enumerate(layers):
        arguments = changeable(mapped(_as_leaf if number else torch.Tensor.detach, value))
        begin = time.perf_counter()
        try:
            value = layer(*arguments) if isinstance(arguments, tuple) else layer(arguments)
        except Exception as error:  # the user's module runs
            raise ValueError(
                f"layer {number} of the module cannot compute with {described(arguments)}, which "
                f"the sample leads to: {one_line(error)}"
            ) from error
        wanted = [tensor for tensor in tensors_of(value) if tensor.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [torch.ones_like(tensor) for tensor in wanted])
        seconds.append(time.perf_counter() - begin)
    return seconds


def _as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def balanced_starts(seconds: Sequence[Sequence[float]], stages: int) -> list[int]:
    """Returns the first layer of each stage, so that the slowest stage is as fast as can be.

    seconds: of each layer, as each rank has measured them; a layer's median counts. A function of
    its arguments alone, so all ranks find the same. Exact, by dynamic programming over the layers:
    the best end of a stage follows from the best cuts of what is before it.
    """
    layers = [statistics.median(times) for times in zip(*seconds, strict=True)]
    if len(layers) < stages:
        raise ValueError(
            f"the module can be cut into {len(layers)} layers; there must be at least {stages}, "
            "one for each stage"
        )
    total = [0.0]
    for layer in layers:
        total.append(total[-1] + layer)
    # best[n]: for the first n layers, the seconds of the slowest stage, then where stages begin.
    best: list[tuple[float, list[int]]] = [(span, [0]) for span in total]
    for stage in range(1, stages):
        best = [
            min(
                (
                    (max(best[begin][0], total[end] - total[begin]), [*best[begin][1], begin])
                    for begin in range(stage, end)
                ),
                default=(float("inf"), []),
            )
            for end in range(len(total))
        ]
    return best[-1][1]
