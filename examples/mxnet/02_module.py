"""A symbol and Module.fit, with the KVStore of Ali-Perseus.

    perseusrun -np 2 python examples/mxnet/02_module.py

Trains a network on digits. Each worker updates its own weights by the sum of all workers'
gradients; Module divides by the global batch. Ends with an error if the accuracy is too low, or if
workers differ.
"""

from __future__ import annotations

import sys

import digits
import mxnet as mx

import perseus.mxnet as perseus

EPOCHS, BATCH, LEARNING_RATE = 6, 60, 0.05


def new_symbol() -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=128, name="hidden")
    output = mx.sym.FullyConnected(mx.sym.relu(hidden), num_hidden=10, name="output")
    return mx.sym.SoftmaxOutput(output, name="softmax")


def main() -> None:
    kv = perseus.create("dist_sync_perseus")
    (images, labels), (test_images, test_labels) = digits.load()
    own = slice(kv.rank, len(labels), kv.num_workers)
    # The same number of batches on every worker: one with more would wait for the others.
    batch = BATCH // kv.num_workers
    rows = len(labels) // kv.num_workers // batch * batch
    train = mx.io.NDArrayIter(images[own][:rows], labels[own][:rows], batch, shuffle=True)
    test = mx.io.NDArrayIter(test_images, test_labels, 100)

    module = mx.mod.Module(new_symbol())
    module.fit(
        train,
        kvstore=kv,
        optimizer="sgd",
        optimizer_params={"learning_rate": LEARNING_RATE, "momentum": 0.9},
        initializer=mx.init.Xavier(),
        num_epoch=EPOCHS,
    )

    accuracy = dict(module.score(test, "acc"))["accuracy"]
    if kv.rank == 0:
        print(f"{kv.num_workers} workers: test accuracy {100 * accuracy:.1f} %")
    if accuracy < 0.85:
        sys.exit("the digits were not learnt")
    for name, weight in module.get_params()[0].items():
        if not (weight == perseus.broadcast(weight, root_rank=0)).asnumpy().all():
            sys.exit(f"{name} differs from worker 0's")


if __name__ == "__main__":
    main()
