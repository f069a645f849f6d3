"""tf.distribute.MultiWorkerMirroredStrategy: a ring over gRPC."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from contest.contenders.tensorflow_graph import GraphContender

KIND = tf.distribute.experimental.CommunicationImplementation.RING


class Contender(GraphContender):
    def __init__(self) -> None:
        cluster = json.loads(os.environ["TF_CONFIG"])
        self.rank = cluster["task"]["index"]
        self.size = len(cluster["cluster"]["worker"])
        # Without heartbeats, since stopped ranks would count as gone. There is no public option for
        # it.
        context.context().configure_coordination_service("")
        options = tf.distribute.experimental.CommunicationOptions(implementation=KIND)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

    def function(self, step: Callable[..., Any]) -> Callable[..., Any]:
        run: Callable[..., Any] = super().function(lambda *args: self._strategy.run(step, args))
        return run

    def scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def summed(self, gradients: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        # Keras's optimizers do the same.
        replica = tf.distribute.get_replica_context()
        return list(replica.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients)))

    def train(self, tape: tf.GradientTape, loss: tf.Tensor, model: Any, optimizer: Any) -> None:
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        # The optimizer sums these.
        means = [gradient / self.size for gradient in gradients]
        optimizer.apply_gradients(zip(means, variables, strict=True))
