"""Keras: fit in a job whose ranks come and go, by the lines of a file of hosts.

    echo localhost:2 > hosts
    perseusrun -np 2 --min-np 1 --watch-hostfile hosts python examples/keras/elastic.py
    echo 127.0.0.1:1 >> hosts                             # meanwhile, from another shell

No process is started again, and each epoch has each image once, whoever has joined or left in its
middle: fit is called for what is left of an epoch. `localhost` and `127.0.0.1` count as two hosts.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import keras
import numpy as np

import perseus.keras as hvd

sys.path.append(str(Path(__file__).parent.parent))
import mnist_file

LEARNING_RATE = 0.05


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    (images, labels), (test_images, test_labels) = mnist_file.load()
    model = new_model()
    sampler = hvd.elastic.ElasticSampler(images, last_round="carry")
    state = hvd.elastic.KerasState(model, sampler=sampler, epoch=0, seen=[])

    def record(batch: int, logs: object) -> None:
        # The last batch of an epoch may be smaller: the sampler counts no more than there are.
        state.sampler.record_batch(batch, arguments.batch_size)
        time.sleep(arguments.pause)

    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=record),
        hvd.elastic.CommitStateCallback(state),  # after what changes the state
    ]

    @hvd.elastic.run
    def train(state: hvd.elastic.KerasState) -> None:
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: {hvd.size()} ranks", flush=True)
        while state.epoch < arguments.epochs:
            state.sampler.set_epoch(state.epoch)
            own = list(state.sampler)
            if own:  # else ranks came or left after the epoch's last batch
                model.fit(
                    images[own],
                    labels[own],
                    batch_size=arguments.batch_size,
                    shuffle=False,  # the sampler has done it
                    initial_epoch=state.epoch,
                    epochs=state.epoch + 1,
                    callbacks=callbacks,
                    verbose=2 if hvd.rank() == 0 else 0,
                )
            state.seen = [*state.seen, state.sampler.processed_num]
            state.epoch += 1

    train(state)
    found = np.argmax(model.predict(test_images, verbose=0), axis=1)
    accuracy = np.mean(found == test_labels)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks at the end: test accuracy {100 * accuracy:.1f} %")
        print(f"images in each epoch: {state.seen}")
    # The images that an epoch leaves over are the first of the next one.
    every = len(images) * arguments.epochs
    if not every - hvd.size() < sum(state.seen) <= every:
        sys.exit("images were lost or seen twice")
    if accuracy < arguments.wanted_accuracy:
        sys.exit("the digits were not learnt")
    for number, weight in enumerate(model.get_weights()):
        if not np.array_equal(weight, hvd.broadcast(weight, 0, name=f"weight {number}")):
            sys.exit(f"weight {number} differs from rank 0's")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16, help="images a step and rank")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--wanted-accuracy", type=float, default=0.9)
    return parser.parse_args()


def new_model() -> keras.Model:
    layers = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.layers.Input((784,)), *layers])
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


if __name__ == "__main__":
    main()
