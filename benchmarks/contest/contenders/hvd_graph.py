"""The part that Perseus and Horovod share: horovod.tensorflow's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from contest.contenders.tensorflow_graph import GraphContender


class HvdGraphContender(GraphContender):
    """`tape` makes a tape distributed; `reduction` is what such tapes sum gradients with."""

    def __init__(self, hvd: Any, tape: Callable[..., Any], reduction: Callable[..., Any]) -> None:
        hvd.init()
        self.rank = hvd.rank()
        self.size = hvd.size()
        self._hvd = hvd
        self._tape = tape
        self._reduction = reduction(
            "Contest",
            device_dense="",
            device_sparse="",
            compression=hvd.Compression.none,
            sparse_as_dense=False,
            op=hvd.Sum,
            gradient_predivide_factor=1.0,
            groups=None,
            process_set=hvd.global_process_set,
        )

    def summed(self, gradients: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        return list(self._reduction(gradients, [_Variable(name) for name in names]))

    def train(self, tape: tf.GradientTape, loss: tf.Tensor, model: Any, optimizer: Any) -> None:
        variables = model.trainable_variables
        gradients = self._tape(tape).gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def close(self) -> None:
        self._hvd.shutdown()


@dataclass(frozen=True)
class _Variable:
    """The attributes of a variable that a reduction uses."""

    name: str

    def ref(self) -> str:
        return self.name
