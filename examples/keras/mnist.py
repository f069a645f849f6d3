"""Keras: compile, fit and callbacks, with checkpoints written by rank 0.

    perseusrun -np 2 python examples/keras/mnist.py --checkpoint digits.keras
    KERAS_BACKEND=torch perseusrun -np 2 python examples/keras/mnist.py

Trains a network on digits, on TensorFlow or on PyTorch, starting from the checkpoint if there is
one. Ends with an error if the accuracy is too low.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import keras
import numpy as np

import perseus.keras as hvd

sys.path.append(str(Path(__file__).parent.parent))
import mnist_file

BATCH, LEARNING_RATE = 60, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--checkpoint", metavar="FILE", help="a name that ends in .keras")
    arguments = parser.parse_args()
    hvd.init()

    images, labels = mnist_file.read()
    order = np.random.default_rng(0).permutation(len(labels))
    own, test = order[:4000][hvd.rank() :: hvd.size()], order[4000:]

    # Only rank 0 reads and writes the file: the others need not see its disk.
    if hvd.rank() == 0 and arguments.checkpoint and Path(arguments.checkpoint).exists():
        model = hvd.load_model(arguments.checkpoint)
        print("resuming")
    else:
        model = new_model()
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(LEARNING_RATE, warmup_epochs=1),
    ]
    if hvd.rank() == 0 and arguments.checkpoint:
        callbacks.append(keras.callbacks.ModelCheckpoint(arguments.checkpoint))
    # The same number of batches on every rank: a rank with more would wait for the others.
    batch = BATCH // hvd.size()
    own = own[: 4000 // hvd.size() // batch * batch]
    model.fit(
        images[own],
        labels[own],
        batch_size=batch,
        epochs=arguments.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )

    found = np.argmax(model.predict(images[test], verbose=0), axis=1)
    accuracy = np.mean(found == labels[test])
    if hvd.rank() == 0:
        print(f"{hvd.size()} processes: test accuracy {100 * accuracy:.1f} %")
    if accuracy < 0.9:
        sys.exit("the digits were not learnt")


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
