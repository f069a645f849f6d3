"""What a stage of layer-wise training must do."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["Stage"]

Shape = tuple[int, ...]


class Stage(abc.ABC):
    """One layer, or a few, with an objective of its own.

    LayerWise calls the methods from one thread. A stage must draw its random numbers from a
    generator of its own, so that they do not depend on which stages share its process.

    Attributes:
      input_shape, output_shape: of one row, without the batch dimension; None if not known.
      device: where the stage computes. It gets its input there.
    """

    input_shape: Shape | None = None
    output_shape: Shape | None = None
    device: torch.device = torch.device("cpu")

    @abc.abstractmethod
    def train(self, batch: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
        """Updates the stage by one mini-batch, and returns the result that goes forward.

        Args:
          batch: [rows, *input_shape].
          target: what came with the batch from the data, such as labels [rows]; None if nothing.

        Returns [rows, *output_shape], detached: what the stage computed before the update.
        """

    @abc.abstractmethod
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Returns the result for a batch without an update, once the stage has been trained."""

    @abc.abstractmethod
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """Returns what collect() copies to the other ranks, which write into these tensors."""

    @abc.abstractmethod
    def module(self) -> torch.nn.Module:
        """Returns the stage as a layer of the whole network, with parameters of its own."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns all that training depends on: parameters, momentum, generators."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what state_dict returned."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns kind, sizes and settings in one line. It is the same on all ranks."""

    def copied(self) -> Mapping[str, torch.Tensor]:
        """Returns what the next stage keeps a copy of, such as the bias of a shared layer."""
        return {}

    def follow(self, copied: Mapping[str, torch.Tensor]) -> None:  # noqa: B027 (not all copy)
        """Takes what the previous stage's copied() returned. Called before it trains on a chunk."""

    def progress(self, share: float) -> None:  # noqa: B027 (not all have a schedule)
        """Called before each update with the share of the updates that are done, from 0 to 1."""

    def misfit(self, previous: Stage) -> str | None:
        """Returns why the results of another stage cannot be this one's input, or None."""
        if None in (previous.output_shape, self.input_shape):
            return None
        if previous.output_shape != self.input_shape:
            return f"it takes rows of {self.input_shape} and would get {previous.output_shape}"
        return None
