"""A custom training loop that goes on while ranks come and go, by the lines of a file of hosts.

    echo localhost:2 > hosts
    perseusrun -np 2 --min-np 1 --watch-hostfile hosts python examples/tensorflow/04_elastic.py
    echo 127.0.0.1:1 >> hosts                             # meanwhile, from another shell

No process is started again, and each epoch has each image once, whoever has joined or left in its
middle. `localhost` and `127.0.0.1` count as two hosts.
"""

from __future__ import annotations

import argparse
import sys
import time

import digits
import numpy as np
import tensorflow as tf

import perseus.tensorflow.horovod as hvd

LEARNING_RATE = 0.05


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)  # one process a core
    (images, labels), (test_images, test_labels) = digits.load()
    model = new_model()
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
    cost = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    sampler = hvd.elastic.ElasticSampler(images, last_round="carry")
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, sampler=sampler, epoch=0, seen=[])

    # The ranks' last batches of an epoch are smaller. Without shapes, one function does for all.
    @tf.function(reduce_retracing=True)
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = cost(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @hvd.elastic.run
    def train(state: hvd.elastic.TensorFlowKerasState) -> None:
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: {hvd.size()} ranks", flush=True)
        while state.epoch < arguments.epochs:
            state.sampler.set_epoch(state.epoch)
            own = list(state.sampler)
            for first in range(0, len(own), arguments.batch_size):
                batch = own[first : first + arguments.batch_size]
                step(images[batch], labels[batch])
                state.sampler.record_batch(first, len(batch))
                time.sleep(arguments.pause)
                state.commit()
            state.seen = [*state.seen, state.sampler.processed_num]
            state.epoch += 1

    train(state)
    accuracy = np.mean(np.argmax(model(test_images), axis=1) == test_labels)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks at the end: test accuracy {100 * accuracy:.1f} %")
        print(f"images in each epoch: {state.seen}")
    # The images that an epoch leaves over are the first of the next one.
    every = len(images) * arguments.epochs
    if not every - hvd.size() < sum(state.seen) <= every:
        sys.exit("images were lost or seen twice")
    if accuracy < arguments.wanted_accuracy:
        sys.exit("the digits were not learnt")
    for variable in model.variables:
        if not np.array_equal(variable, hvd.broadcast(variable, root_rank=0)):
            sys.exit(f"{variable.path} differs from rank 0's")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16, help="images a step and rank")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--wanted-accuracy", type=float, default=0.9)
    return parser.parse_args()


def new_model() -> tf.keras.Model:
    layers = [tf.keras.layers.Dense(128, activation="relu"), tf.keras.layers.Dense(10)]
    return tf.keras.Sequential([tf.keras.layers.Input((784,)), *layers])


if __name__ == "__main__":
    main()
