"""What a rank does in one call of a pipeline: a step, a prediction, or what has no messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

import perseus.torch.horovod as hvd
from perseus.pipeline.calls import Call
from perseus.pipeline.exchange import Exchange
from perseus.pipeline.executor import Execution
from perseus.pipeline.figures import Figures
from perseus.pipeline.stage import Stage
from perseus.pipeline.traffic import Traffic
from perseus.pipeline.values import cut, described, joined, rows

__all__ = ["Meeting", "Prediction", "Step"]


class Meeting:
    """A call of all ranks, which take turns in numbers that all count alike. This one sends
    nothing but what ranks compare first.

    Attributes:
      call: of this rank.
      loss, input_rows, target_rows: see Prediction.
    """

    def __init__(self, traffic: Traffic, number: int, call: Call) -> None:
        self.call = call
        self.loss = 0.0
        self.input_rows = 0
        self.target_rows = 0
        self._traffic = traffic
        self._plan = traffic.plan
        self._number = number

    def meet(self) -> None:
        """Hears which calls the others are in. Raises OtherCallError if it is another."""
        exchange = self._traffic.exchange(self.call, self._number)
        try:
            exchange.finish()
        except BaseException as error:
            exchange.give_up(error)
            raise


class Prediction(Meeting):
    """The forwards of a batch.

    Attributes:
      loss: of this replica's batch, on the rank with the last stage; 0 elsewhere.
      input_rows, target_rows: of the batch, on the ranks with the first and the last stage; 0
        elsewhere.
    """

    def __init__(
        self,
        traffic: Traffic,
        number: int,
        call: Call,
        stages: Mapping[int, Stage],
        figures: Mapping[int, Figures],
    ) -> None:
        super().__init__(traffic, number, call)
        self._stages = stages
        self._figures = figures

    @property
    def _last(self) -> int:
        return self._plan.stages - 1

    def run(self, x: Any, keeps_outputs: bool = True) -> Any:
        """Returns the outputs on the rank with the last stage, otherwise None. If it raises, no
        other rank waits for this one any more."""
        exchange = self._traffic.exchange(self.call, self._number)
        try:
            return self._execute(exchange, x, None, keeps_outputs)
        except BaseException as error:
            exchange.give_up(error)
            raise

    def _execute(
        self,
        exchange: Exchange,
        x: Any,
        loss: Callable[[int, Any], torch.Tensor] | None,
        keeps_outputs: bool,
    ) -> Any:
        inputs = []
        if 0 in self._stages:
            inputs = self._cut(0, "x", x)
            self.input_rows = 0 if loss is None else rows("x", x)
        execution = Execution(
            self._plan.routes,
            self._number,
            self._stages,
            self._figures,
            self._plan.codecs,
            exchange,
            inputs,
            loss,
        )
        execution.run(self._traffic.order(self.call), keeps_outputs)
        return joined(execution.outputs) if execution.outputs else None

    def _cut(self, stage: int, name: str, batch: Any) -> list[Any]:
        try:
            return cut(name, batch, self._plan.microbatches)
        except (TypeError, ValueError) as error:
            rank = self._plan.routes.rank_of(stage)
            raise type(error)(f"stage {stage} (rank {rank}): {error}") from None


class Step(Prediction):
    """Forwards and backwards of a batch, and the gradients of tied weights."""

    def __init__(
        self,
        traffic: Traffic,
        number: int,
        call: Call,
        stages: Mapping[int, Stage],
        figures: Mapping[int, Figures],
        loss_fn: Callable[[Any, Any], torch.Tensor],
        is_mean: bool,
    ) -> None:
        super().__init__(traffic, number, call, stages, figures)
        self._tied = traffic.tied
        self._loss_fn = loss_fn
        self._is_mean = is_mean
        self._targets: list[Any] = []

    def run_with(self, x: Any, target: Any, keeps_outputs: bool) -> Any:
        """Does what run does, with backwards."""
        exchange = self._traffic.exchange(self.call, self._number)
        self._tied.begin()
        try:
            if not torch.is_grad_enabled():
                raise ValueError(
                    f"rank {hvd.rank()} called step where gradients are off, as under "
                    "torch.no_grad; call predict there"
                )
            if self._last in self._stages:
                self._targets = self._cut(self._last, "target", target)
                self.target_rows = rows("target", target)
            outputs = self._execute(exchange, x, self._loss_of, keeps_outputs)
            self._tied.sum_gradients(exchange, self._number)
            return outputs
        except BaseException as error:
            exchange.give_up(error)
            for stage in self._stages.values():
                stage.forget()
            raise
        finally:
            self._tied.end()

    def _loss_of(self, number: int, output: Any) -> torch.Tensor:
        """Returns what the last stage's backward of a micro-batch begins at."""
        target = self._targets[number]
        loss = self._loss_fn(output, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError(
                f"loss_fn returned {described(loss)}; it must return a tensor with one element"
            )
        if not loss.requires_grad and any(one.requires_grad for one in _tensors(output)):
            raise ValueError(
                "loss_fn returned a loss without a gradient for an output that has one; it must "
                "compute the loss with differentiable operations"
            )
        if self._is_mean:
            loss = loss * (rows("target", target) / self.target_rows)
        self.loss += float(loss.detach())
        return loss.reshape(())


def _tensors(output: Any) -> list[torch.Tensor]:
    """Returns the tensors of the last stage's output, which may be of any type."""
    return [one for one in pytree.tree_leaves(output) if isinstance(one, torch.Tensor)]
