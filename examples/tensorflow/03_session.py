"""A graph and a session, as in scripts for TensorFlow 1, under tf.compat.v1.

    perseusrun -np 2 python examples/tensorflow/03_session.py

Trains softmax regression on digits: an optimizer reduces gradients, a hook broadcasts rank 0's
variables, and only rank 0 writes checkpoints. Ends with an error if the accuracy is too low.
"""

from __future__ import annotations

import sys
import tempfile

import digits
import numpy as np
import tensorflow.compat.v1 as tf

import perseus.tensorflow.horovod as hvd

EPOCHS, BATCH, LEARNING_RATE = 3, 60, 0.5


def main() -> None:
    tf.disable_eager_execution()
    hvd.init()
    (images, labels), (test_images, test_labels) = digits.load()

    x = tf.placeholder(tf.float32, [None, 784])
    y = tf.placeholder(tf.int64, [None])
    weights = tf.get_variable("weights", [784, 10])
    bias = tf.get_variable("bias", [10])
    logits = x @ weights + bias
    loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    mean_accuracy = hvd.allreduce(accuracy)

    step = tf.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(LEARNING_RATE))
    train = optimizer.minimize(loss, global_step=step)

    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    config = tf.ConfigProto(intra_op_parallelism_threads=1)  # one process per core
    with (
        tempfile.TemporaryDirectory() as folder,
        tf.train.MonitoredTrainingSession(
            checkpoint_dir=folder if hvd.rank() == 0 else None, hooks=hooks, config=config
        ) as session,
    ):
        for epoch in range(EPOCHS):
            for own in digits.own_batches(len(labels), BATCH, epoch, hvd.rank(), hvd.size()):
                session.run(train, {x: images[own], y: labels[own]})
        # Each rank tests a part.
        part = slice(hvd.rank(), None, hvd.size())
        found = session.run(mean_accuracy, {x: test_images[part], y: test_labels[part]})
        steps = session.run(step)
    if hvd.rank() == 0:
        print(f"{hvd.size()} processes: test accuracy {100 * found:.1f} % after {steps} steps")
    if not (found > 0.85 and np.isfinite(found)):
        sys.exit("the digits were not learnt")


if __name__ == "__main__":
    main()
