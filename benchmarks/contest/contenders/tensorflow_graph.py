"""The part that contenders share that reduce gradients in a graph of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

# One thread in each rank, as PyTorch's contenders have: with one core for each rank, running
# operations in parallel only adds context switches.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class GraphContender:
    rank: int
    size: int

    def function(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `step` as one graph, in which the other methods may be called."""
        return tf.function(step, autograph=False)

    def scope(self) -> AbstractContextManager[Any]:
        """The scope in which variables and optimizers are made."""
        return nullcontext()

    def summed(self, gradients: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """Sums over the ranks, as training does with the gradients of the named variables."""
        raise NotImplementedError

    def train(self, tape: tf.GradientTape, loss: tf.Tensor, model: Any, optimizer: Any) -> None:
        """Takes a step with the mean of the ranks' gradients."""
        raise NotImplementedError

    def meet(self) -> tf.Tensor:
        """Returns a tensor that no rank gets before all ranks have reached this point."""
        return self.summed([tf.ones([])], ["meeting"])[0]

    def close(self) -> None:
        pass
