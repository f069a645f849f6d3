"""What contenders have in common that reduce gradients in a graph of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

# One thread a rank, as PyTorch's contenders have, where ranks have a core each: to run operations
# beside each other on it only makes threads change places.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class GraphContender:
    rank: int
    size: int

    def function(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step` as one graph, in which the rest of these may be called."""
        return tf.function(step, autograph=False)

    def scope(self) -> AbstractContextManager[Any]:
        """Where variables and optimizers are made."""
        return nullcontext()

    def summed(self, gradients: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        """Over the ranks, as those of the variables of these names are in training."""
        raise NotImplementedError

    def train(self, tape: tf.GradientTape, loss: tf.Tensor, model: Any, optimizer: Any) -> None:
        """A step by the mean of the ranks' gradients."""
        raise NotImplementedError

    def meet(self) -> tf.Tensor:
        """What no rank has before all have come."""
        return self.summed([tf.ones([])], ["meeting"])[0]

    def close(self) -> None:
        pass
