"""A stage of a pipeline: forward and backward of one micro-batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from perseus.pipeline.split_backward import SplitBackward
from perseus.pipeline.values import described, mapped, tensors_of

__all__ = ["Gradient", "Stage", "changeable"]

Gradient: TypeAlias = "list[torch.Tensor | None]"


def changeable(value: Any) -> Any:
    """Returns what is given to a module in place of a value whose tensors are leaves of a graph.

    It has their memory and passes gradients to them, but may be changed in place. Micro-batches,
    which are parts of one batch, are changed each for itself: `data` has its own count of changes.
    """
    return mapped(lambda leaf: _Changeable.apply(leaf) if leaf.requires_grad else leaf.data, value)


class _Changeable(torch.autograd.Function):  # type: ignore[misc]  # torch is optional
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.detach()  # no view, which autograd would let nobody change

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@dataclass
class _Kept:
    """What the backward of a micro-batch needs."""

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    split: SplitBackward | None = None


class Stage:
    """A module, the number of its stage, and the activations of micro-batches in flight.

    A tuple that comes from the stage before is the module's arguments; anything else is its only
    argument. The gradient of a value is a list: one for each of its tensors, None where there is
    none. Only the thread that calls Pipeline.step uses it.
    """

    def __init__(self, index: int, module: torch.nn.Module, device: torch.device | None) -> None:
        self.index = index
        self.module = module
        self.device = device or next(
            (tensor.device for tensor in (*module.parameters(), *module.buffers())),
            torch.device("cpu"),
        )
        self._kept: dict[int, _Kept] = {}

    def received(self, value: Any) -> Any:
        """Returns a value from another stage on this stage's device, cut from that one's graph."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            own = tensor.detach().to(self.device)
            return own.requires_grad_() if tensor.requires_grad else own

        return mapped(moved, value)

    def forward(
        self, microbatch: int, value: Any, loss: Callable[[Any], torch.Tensor] | None, keeps: bool
    ) -> Any:
        """Returns the stage's output, and keeps what backward needs.

        Args:
          loss: gives what backward begins at, from the output; None for all stages but the last.
          keeps: False for predictions.
        """
        given = changeable(value) if keeps else value
        output = self.module(*given) if isinstance(given, tuple) else self.module(given)
        begins = tensors_of(output) if loss is None else [loss(output)]
        if keeps:
            self._kept[microbatch] = _Kept(tensors_of(value), begins)
        return output

    def backward(self, microbatch: int, gradient: Gradient | None) -> Gradient:
        """Adds the gradients of the parameters to theirs; returns that of the stage's input.

        gradient: of the stage's output; None in the last stage, which begins at the loss.
        """
        kept = self._kept.pop(microbatch)
        outputs, gradients = _differentiable(kept.outputs, gradient)
        if outputs:
            torch.autograd.backward(outputs, gradients)
        return [tensor.grad for tensor in kept.inputs]

    def input_backward(self, microbatch: int, gradient: Gradient | None) -> Gradient:
        """Does the first part of backward: returns the gradient of the stage's input."""
        kept = self._kept[microbatch]
        outputs, gradients = _differentiable(kept.outputs, gradient)
        wanted = [tensor for tensor in kept.inputs if tensor.requires_grad]
        kept.split = SplitBackward(outputs, gradients, wanted)
        found = iter(kept.split.input_gradients())
        return [next(found) if tensor.requires_grad else None for tensor in kept.inputs]

    def weight_backward(self, microbatch: int) -> None:
        """Does the second part: adds the gradients of the parameters to theirs."""
        split = self._kept.pop(microbatch).split
        assert split is not None, "the first part comes before"
        split.weight_gradients()

    def forget(self) -> None:
        """Drops the activations of a step that has failed."""
        self._kept.clear()


def _differentiable(
    outputs: Sequence[torch.Tensor], gradient: Gradient | None
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Returns the outputs that have a gradient, and these gradients; None stands for a loss's."""
    if gradient is None:
        wanted = [tensor for tensor in outputs if tensor.requires_grad]
        return wanted, [None] * len(wanted)
    found: list[torch.Tensor] = []
    gradients: list[torch.Tensor | None] = []
    for output, given in zip(outputs, gradient, strict=True):
        if given is None or not output.requires_grad:
            continue
        if given.shape != output.shape:
            raise ValueError(
                f"the gradient of {described(output)} is {described(given)}; it must have its shape"
            )
        found.append(output)
        gradients.append(given)
    return found, gradients
