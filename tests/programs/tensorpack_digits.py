"""tensorpack's HorovodTrainer, whose Horovod is the drop-in.

perseusrun --drop-in -np 2 python tensorpack_digits.py
"""

from __future__ import annotations

import os
import sys

import digits
import numpy as np
import outcome
import tensorflow
import tensorpack
from tensorpack.compat import tfv1 as tf
from tensorpack.dataflow import BatchData, DataFromList

EPOCHS, HIDDEN = 10, 64

# HorovodTrainer calls this function by the name that it had in TensorFlow 1.
tensorflow.global_variables = tf.global_variables


class Digits(tensorpack.ModelDesc):
    """A model that differs from rank to rank, until rank 0's weights are broadcast."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def inputs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([None, 64], tf.float32, "images"),
            tf.TensorSpec([None], tf.int64, "labels"),
        ]

    def build_graph(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        def layer(name: str, inputs: tf.Tensor, width: int) -> tf.Tensor:
            shape = [inputs.shape[-1], width]
            initializer = tf.glorot_uniform_initializer(seed=self.rank)
            weights = tf.get_variable(f"{name}/weights", shape, initializer=initializer)
            return inputs @ weights + tf.get_variable(
                f"{name}/bias", [width], initializer=tf.zeros_initializer()
            )

        logits = layer("last", tf.nn.tanh(layer("first", images, HIDDEN)), 10)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels)
        return tf.reduce_mean(losses, name="loss")

    def optimizer(self) -> tf.train.Optimizer:
        return tf.train.MomentumOptimizer(0.3, 0.9)


class Keep(tensorpack.Callback):
    """Keeps the weights on each rank."""

    _chief_only = False

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def _after_train(self) -> None:
        weights = self.trainer.sess.run(tf.trainable_variables())
        _, _, images, labels = digits.load()
        first, first_bias, last, last_bias = weights
        logits = np.tanh(images.reshape(-1, 64) @ first + first_bias) @ last + last_bias
        outcome.keep(self.rank, weights, "accuracy", (logits.argmax(axis=1) == labels).mean())


def main() -> None:
    rank, size = 0, 1
    trainer = tensorpack.SimpleTrainer()
    if "--alone" not in sys.argv:
        trainer = tensorpack.HorovodTrainer()
        rank, size = trainer.hvd.rank(), trainer.hvd.size()
    tensorpack.logger.set_logger_dir(f"{os.environ['PROGRAM_OUTCOME']}/{rank}", "d")
    images, labels, _, _ = digits.load()
    rows = list(zip(images.reshape(-1, 64), labels, strict=True))
    data = BatchData(DataFromList(rows[rank::size], shuffle=False), digits.BATCH // size)
    config = tensorpack.TrainConfig(
        model=Digits(rank),
        dataflow=data,
        callbacks=[Keep(rank)],
        extra_callbacks=[],
        monitors=[],
        steps_per_epoch=digits.TRAINED // digits.BATCH,
        max_epoch=EPOCHS,
    )
    tensorpack.launch_train_with_config(config, trainer)


if __name__ == "__main__":
    main()
