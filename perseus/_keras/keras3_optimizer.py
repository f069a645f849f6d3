"""Optimizers of Keras 3 on any backend, whose gradients all go through `apply`."""

from __future__ import annotations

import functools
import sys
from typing import Any

from perseus._keras.distributed import Distributed

__all__ = ["Keras3Distributed"]


class Keras3Distributed(Distributed):
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Reduces the gradients over the ranks and applies them.

        With backward_passes_per_step, it adds them up until the last pass.
        """
        grads = list(grads)
        apply = super().apply
        variables = self._variables_of(trainable_variables)
        if self._reducer.is_marked() or len(variables) != len(grads) or not grads:
            apply(grads, trainable_variables)
            return
        if not self.built:
            self.build(variables)
        self._reducer.step(
            grads,
            variables,
            self._allreduce,
            lambda reduced: apply(reduced, variables),
            self._count_a_pass,
        )

    def _variables_of(self, trainable_variables: Any) -> list[Any]:
        if trainable_variables is not None:
            return list(trainable_variables)
        return list(self._trainable_variables) if self.built else []

    def _count_a_pass(self) -> None:
        counted: Any = getattr(self, "inner_optimizer", self)
        counted._iterations.assign_add(1)

    @classmethod
    def _prepare(cls, own: type) -> None:
        _reduce_before_loss_scaling()


def _reduce_before_loss_scaling() -> None:
    """Makes LossScaleOptimizer check reduced gradients, if it applies them by our optimizer.

    model.compile wraps an optimizer in it. It calls the optimizer only if the gradients are finite.
    If it checked local ones, some ranks could wait forever for others that skip the step.
    """
    scaling = sys.modules["keras"].optimizers.LossScaleOptimizer
    own = scaling.apply
    if hasattr(own, "_of_perseus"):
        return

    @functools.wraps(own)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        grads = list(grads)
        variables = list(trainable_variables or self._trainable_variables)
        if not isinstance(inner, Keras3Distributed) or len(variables) != len(grads):
            own(self, grads, trainable_variables)
            return
        reducer = inner._reducer
        reducer.is_loss_scaled = True
        if reducer.accumulates:
            own(self, reducer.agree(grads), trainable_variables)
            return
        reduced = reducer.reduce(grads, variables, inner._allreduce)
        with reducer.marking():
            own(self, reduced, trainable_variables)

    marked: Any = apply
    marked._of_perseus = True
    scaling.apply = marked
