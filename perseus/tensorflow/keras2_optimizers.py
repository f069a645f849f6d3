"""Optimizers of Keras 2, new and legacy, on TensorFlow.

minimize computes gradients, aggregates them (for Keras, over the devices of one process) and
applies them. Each step is a method that users call as well. The first of these methods that sees
gradients reduces them, so that code in between, such as clipping, gets reduced ones, and no
gradient is applied without being reduced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from perseus._keras.distributed import Distributed
from perseus.tensorflow.horovod.gradient_aggregation_eager import (
    LocalGradientAggregationHelperEager,
)

__all__ = ["Keras2Distributed", "LegacyDistributed"]

#: Gradients with their variables.
Pairs = list[tuple[Any, Any]]


class _Keras2(Distributed):
    @functools.cached_property
    def _agg_helper(self) -> LocalGradientAggregationHelperEager | None:
        """Adds up the gradients of several passes; None if each step has one.

        Programs for Horovod look at its counter.
        """
        return _Aggregation(self) if self._reducer.accumulates else None

    def _allreduce(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Does what it does in other optimizers; of several passes, in the last one.

        In the passes before, it returns the sums of this rank.
        """
        if self._agg_helper is not None:
            return self._agg_helper.compute_gradients(grads, vars)
        return super()._allreduce(grads, vars)

    def _with_reduced(self, pairs: Pairs) -> Pairs:
        if self._is_in_loss_scaling():
            self._reducer.is_loss_scaled = True
        gradients, variables = _parts(pairs)
        reduced = self._reducer.reduce(gradients, variables, self._allreduce)
        return list(zip(reduced, variables, strict=True))

    def _after_computing(self, pairs: Pairs) -> Pairs:
        if self._reducer.accumulates and self._is_in_loss_scaling():
            return pairs  # the scale may change before the last pass
        pairs = self._with_reduced(pairs)
        self._reducer.mark()
        return pairs

    def _before_aggregating(self, pairs: Any) -> Pairs:
        """Reduces gradients, also for an optimizer that scales the loss, before it checks them."""
        own: Pairs = list(pairs)
        if self._reducer.accumulates and self._is_in_loss_scaling():
            gradients, variables = _parts(own)
            return list(zip(self._reducer.agree(gradients), variables, strict=True))
        if not self._reducer.is_marked():
            own = self._with_reduced(own)
            if self._reducer.accumulates:
                self._reducer.mark()
        elif not self._reducer.accumulates:
            self._reducer.clear_mark()
        return own

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
        if self._agg_helper is not None and (
            aggregates or reducer.is_marked() or self._is_in_loss_scaling()
        ):
            with tf.init_scope():
                build(_parts(pairs)[1])
            if not reducer.is_marked():
                pairs = self._with_reduced(pairs)
            reducer.clear_mark()
            self._agg_helper.apply_gradients(lambda: _operation(apply(pairs, False)), self, pairs)
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


class _Aggregation(LocalGradientAggregationHelperEager):
    """Adds up the gradients of an optimizer, which knows what variables are local.

    It is for graphs as well.
    """

    def __init__(self, optimizer: _Keras2) -> None:
        reducer = optimizer._reducer
        options = reducer.options

        def allreduce_grads(*args: Any, **kwargs: Any) -> Any:
            return optimizer._allreduce_grads(*args, **kwargs)

        super().__init__(
            options.passes,
            allreduce_grads,
            options.sparse_as_dense,
            options.average_aggregated_gradients,
            options.process_set,
            options.scale_local_gradients,
        )
        self._optimizer = optimizer
        self._name = options.name
        # The reducer resets them.
        accumulation: Any = reducer.accumulation
        self._sums = accumulation.sums

    def register_local_var(self, var: Any) -> None:
        self._optimizer.register_local_var(var)

    def _reduce(self, sums: list[Any], variables: list[Any]) -> list[Any]:
        return self._optimizer._reducer.allreduce(sums, variables, self.allreduce_grads)


class Keras2Distributed(_Keras2):
    """For optimizers of tf.keras.optimizers."""

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """Returns gradients, reduced over the ranks, with their variables."""
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Pairs:
        """Does what compute_gradients does. Programs for Horovod call or replace it."""
        if grad_loss is not None:
            raise TypeError("grad_loss is for optimizers of tf.keras.optimizers.legacy")
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

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """Returns gradients, reduced over the ranks, with their variables."""
        return self._compute_gradients(loss, var_list, None, tape)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Returns gradients, reduced over the ranks; for v1 graphs."""
        gradients = super().get_gradients(loss, params)
        return _parts(self._after_computing(list(zip(gradients, params, strict=True))))[0]

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


def _operation(done: Any) -> Any:
    """Returns what a graph can wait for; None for a variable."""
    return done if isinstance(done, (tf.Operation, tf.Tensor)) else None
