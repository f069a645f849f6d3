"""A custom training loop: DistributedGradientTape in a tf.function.

    perseusrun -np 2 python examples/tensorflow/01_custom_loop.py

Trains a network on digits. All gradients are reduced inside the function, while it computes further
ones. Ends with an error if the accuracy is too low, or if ranks differ.
"""

from __future__ import annotations

import sys

import digits
import numpy as np
import tensorflow as tf

import perseus.tensorflow.horovod as hvd

EPOCHS, BATCH, LEARNING_RATE = 3, 60, 0.05


def main() -> None:
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # one process a core
    (images, labels), (test_images, test_labels) = digits.load()

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((784,)),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
    cost = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = cost(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for epoch in range(EPOCHS):
        losses = [
            step(images[own], labels[own])
            for own in digits.own_batches(len(labels), BATCH, epoch, hvd.rank(), hvd.size())
        ]
        mean = hvd.allreduce(tf.reduce_mean(losses), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {mean:.4f}")

    found = np.argmax(model(test_images), axis=1)
    accuracy = np.mean(found == test_labels)
    if hvd.rank() == 0:
        print(f"{hvd.size()} processes: test accuracy {100 * accuracy:.1f} %")
    if accuracy < 0.9:
        sys.exit("the digits were not learnt")
    for variable in model.variables:
        if not np.array_equal(variable, hvd.broadcast(variable, root_rank=0)):
            sys.exit(f"{variable.path} differs from rank 0's")


if __name__ == "__main__":
    main()
