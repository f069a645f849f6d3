"""Runs the actions of one rank for one step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from perseus.pipeline.codecs import Codec
from perseus.pipeline.errors import StageError, one_line
from perseus.pipeline.exchange import Exchange
from perseus.pipeline.figures import Figures
from perseus.pipeline.packing import pack, pack_gradient, unpack, unpack_gradient
from perseus.pipeline.routes import Routes
from perseus.pipeline.schedules import Action, Kind
from perseus.pipeline.stage import Gradient, Stage
from perseus.pipeline.values import described
from perseus_core import HorovodInternalError

__all__ = ["Execution"]

_WORK = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT: "backward to its input",
    Kind.WEIGHT: "backward to its parameters",
}


class Execution:
    """One step on this rank. Activations and their gradients go ahead of parameters' gradients,
    older micro-batches ahead of newer ones.

    Args:
      codecs: of activations, and of their gradients.
      inputs: the micro-batches of the first stage; empty on other ranks.
      loss: gives the loss of a micro-batch from its number and the last stage's output; None for
        predictions.
    """

    def __init__(
        self,
        routes: Routes,
        step: int,
        stages: Mapping[int, Stage],
        figures: Mapping[int, Figures],
        codecs: tuple[Codec | None, Codec | None],
        exchange: Exchange,
        inputs: Sequence[Any],
        loss: Callable[[int, Any], torch.Tensor] | None,
    ) -> None:
        self._routes = routes
        self._step = step
        self._stages = stages
        self._figures = figures
        self._codecs = codecs
        self._exchange = exchange
        self._inputs = inputs
        self._loss = loss
        self._last = routes.stages - 1
        # What stages of this rank give each other, by the receiving stage and the micro-batch.
        self._activations: dict[tuple[int, int], Any] = {}
        self._gradients: dict[tuple[int, int], Gradient] = {}
        #: the last stage's outputs, in the order of the micro-batches
        self.outputs: list[Any] = []

    def run(self, actions: Sequence[Action], keeps_outputs: bool) -> None:
        """Runs the actions. Raises StageError if a stage on this rank fails, and
        HorovodInternalError if another rank does."""
        for action in actions:
            if action.kind is Kind.FORWARD:
                self._forward(action, keeps_outputs)
            elif action.kind is Kind.WEIGHT:
                self._weight_backward(action)
            else:
                self._backward(action)
        with self._figures[max(self._figures)].waiting_for_output():
            self._exchange.finish()

    def _forward(self, action: Action, keeps_output: bool) -> None:
        stage = self._stages[action.stage]
        number = action.microbatch
        with self._figures[action.stage].waiting_for_input():
            value = self._input(action.stage, number)
        trains = self._loss is not None
        loss = None
        if self._loss is not None and action.stage == self._last:
            loss = functools.partial(self._loss, number)
        output = self._compute(
            action, value, lambda: stage.forward(number, stage.received(value), loss, trains)
        )
        if action.stage == self._last:
            if keeps_output:
                self.outputs.append(output)
        elif self._routes.crosses(action.stage):
            tag = self._routes.activation(self._step, action.stage, number)
            message = self._named(action, value, lambda: pack(output, self._codecs[0]))
            self._exchange.send(tag, message, self._priority(number))
        else:
            self._activations[action.stage + 1, number] = output

    def _input(self, stage: int, number: int) -> Any:
        if stage == 0:
            return self._inputs[number]
        if self._routes.crosses(stage - 1):
            return unpack(
                self._exchange.take(self._routes.activation(self._step, stage - 1, number))
            )
        return self._activations.pop((stage, number))

    def _backward(self, action: Action) -> None:
        stage = self._stages[action.stage]
        number = action.microbatch
        with self._figures[action.stage].waiting_for_input():
            gradient = self._gradient(action.stage, number)
        is_whole = action.kind is Kind.BACKWARD
        work = stage.backward if is_whole else stage.input_backward
        found = self._compute(action, gradient, lambda: work(number, gradient))
        if self._routes.crosses(action.stage - 1):
            tag = self._routes.gradient(self._step, action.stage - 1, number)
            message = pack_gradient(found, self._codecs[1])
            self._exchange.send(tag, message, self._priority(number))
        elif action.stage:
            self._gradients[action.stage - 1, number] = found

    def _gradient(self, stage: int, number: int) -> Gradient | None:
        if stage == self._last:
            return None
        if self._routes.crosses(stage):
            found = unpack_gradient(
                self._exchange.take(self._routes.gradient(self._step, stage, number))
            )
            device = self._stages[stage].device
            return [one if one is None else one.to(device) for one in found]
        return self._gradients.pop((stage, number))

    def _priority(self, number: int) -> int:
        return self._routes.microbatches - number

    def _weight_backward(self, action: Action) -> None:
        stage = self._stages[action.stage]
        self._compute(action, None, lambda: stage.weight_backward(action.microbatch))

    def _compute(self, action: Action, given: Any, work: Callable[[], Any]) -> Any:
        """Does what counts as computing."""
        with self._figures[action.stage].computing(action):
            return self._named(action, given, work)

    def _named(self, action: Action, given: Any, work: Callable[[], Any]) -> Any:
        """Does what may fail because of the user's modules. Its error then names the stage."""
        try:
            return work()
        except HorovodInternalError:
            raise
        except Exception as error:
            rank = self._routes.rank_of(action.stage)
            raise StageError(self._told(action, given, error), action.stage, rank) from error

    def _told(self, action: Action, given: Any, error: Exception) -> str:
        kind, stage, number = action
        text = (
            f"stage {stage} (rank {self._routes.rank_of(stage)}) failed in {_WORK[kind]} of "
            f"micro-batch {number}: {one_line(error)}"
        )
        if kind is Kind.FORWARD:
            source = f"stage {stage - 1} gave it" if stage else "its input was"
            text += f"; {source} {described(given)}"
        return text
