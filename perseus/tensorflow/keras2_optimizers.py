"""Optimizers of Keras 2, new and legacy, on TensorFlow.

minimize computes gradients, aggregates them (for Keras, over the devices of one process) and
applies them. Each step is a method that users call as well. The first of these methods that sees
gradients reduces them, so that code in between, such as clipping, gets reduced ones, and no
gradient is applied without being reduced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from perseus._keras.distributed import Distributed

__all__ = ["Keras2Distributed", "LegacyDistributed"]

#: Gradients with their variables.
Pairs = list[tuple[Any, Any]]


class _Keras2(Distributed):
    def _with_reduced(self, pairs: Pairs) -> Pairs:
        gradients, variables = _parts(pairs)
        return list(zip(self._reducer.reduce(gradients, variables), variables, strict=True))

    def _after_computing(self, pairs: Pairs) -> Pairs:
        if self._reducer.accumulates:
            return pairs
        pairs = self._with_reduced(pairs)
        self._reducer.mark()
        return pairs

    def _before_aggregating(self, pairs: Any) -> Pairs:
        """Reduces gradients, also for an optimizer that scales the loss, before it checks them."""
        own: Pairs = list(pairs)
        if self._is_in_loss_scaling():
            self._reducer.is_loss_scaled = True
        if self._reducer.accumulates:
            if not self._is_in_loss_scaling():
                return own
            gradients, variables = _parts(own)
            return list(zip(self._reducer.agree(gradients), variables, strict=True))
        if self._reducer.is_marked():
            self._reducer.clear_mark()
            return own
        return self._with_reduced(own)

    def _applying(
        self, pairs: Any, aggregates: bool, build: Callable[[Any], None], apply: Callable[..., Any]
    ) -> Any:
        """Reduces gradients if necessary, and calls `apply` unless more passes are to come.

        Args:
          pairs: gradients with their variables.
          aggregates: False if the caller says that the gradients have been reduced.
          build: creates the optimizer's variables.
          apply: gets the pairs, and whether Keras must aggregate them.
        """
        pairs = list(pairs)
        reducer = self._reducer
        if reducer.accumulates and (aggregates or self._is_in_loss_scaling()):
            gradients, variables = _parts(pairs)
            with tf.init_scope():
                build(variables)

            def apply_reduced(reduced: list[Any]) -> None:
                apply(list(zip(reduced, variables, strict=True)), False)

            reducer.step(gradients, variables, apply_reduced, self._count_a_pass)
            # In a graph it must be an operation, like the branch of LossScaleOptimizer that applies
            # nothing.
            return self.iterations if tf.executing_eagerly() else tf.no_op()
        if not aggregates:
            reducer.clear_mark()
            return apply(pairs, False)
        if not reducer.is_marked():
            pairs = self._with_reduced(pairs)
        # A LossScaleOptimizer aggregates through the optimizer in it, which is not distributed.
        with reducer.marking():
            return apply(pairs, True)

    def _is_in_loss_scaling(self) -> bool:
        return bool(getattr(self, "_is_wrapped_by_loss_scale_optimizer", False))

    def _count_a_pass(self) -> None:
        self.iterations.assign_add(1)


class Keras2Distributed(_Keras2):
    """For optimizers of tf.keras.optimizers."""

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """Returns gradients, reduced over the ranks, with their variables."""
        pairs: Pairs = super().compute_gradients(loss, var_list, tape)
        return self._after_computing(pairs)

    def aggregate_gradients(self, grads_and_vars: Any) -> Pairs:
        pairs = self._before_aggregating(grads_and_vars)
        aggregated: Pairs = super().aggregate_gradients(pairs)
        return aggregated

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Applies gradients, and reduces them first unless compute_gradients has done so.

        Args:
          skip_gradients_aggregation: apply the gradients without reducing them.
        """
        own = super().apply_gradients
        aggregates = not skip_gradients_aggregation and kwargs.pop(
            "experimental_aggregate_gradients", True
        )
        # An optimizer that scales the loss has no argument `name`.
        options = {} if name is None else {"name": name}

        def apply(pairs: Pairs, aggregates: bool) -> Any:
            return own(pairs, skip_gradients_aggregation=not aggregates, **options)

        return self._applying(grads_and_vars, aggregates, self.build, apply)


class LegacyDistributed(_Keras2):
    """For optimizers of tf.keras.optimizers.legacy."""

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Pairs:
        pairs = super()._compute_gradients(loss, var_list, grad_loss, tape)
        return self._after_computing(pairs)

    def _aggregate_gradients(self, grads_and_vars: Any) -> Pairs:
        pairs = self._before_aggregating(grads_and_vars)
        aggregated: Pairs = super()._aggregate_gradients(pairs)
        return aggregated

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Applies gradients, and reduces them first unless minimize has done so.

        Args:
          experimental_aggregate_gradients: if False, apply the gradients without reducing them.
        """
        own = super().apply_gradients

        def apply(pairs: Pairs, aggregates: bool) -> Any:
            return own(pairs, name=name, experimental_aggregate_gradients=aggregates)

        build = self._create_all_weights
        return self._applying(grads_and_vars, experimental_aggregate_gradients, build, apply)


def _parts(pairs: Pairs) -> tuple[list[Any], list[Any]]:
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
