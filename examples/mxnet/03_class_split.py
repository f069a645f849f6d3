"""Model parallelism for a large last layer: each worker has some of its classes.

    perseusrun -np 2 python examples/mxnet/03_class_split.py

Face recognition does this, where the last layer has a row for each of millions of people. The
network below the last layer is data-parallel. Each worker gathers all features and multiplies them
by its own rows, so the last layer's weights and their gradients are never sent. The softmax sends
two numbers for each image, in one reduction with Max and one with Sum. Here the classes are the ten
digits, padded to a multiple of the number of workers.

Ends with an error if the accuracy is too low, or if the loss differs from that of the whole layer,
assembled on one worker.
"""

from __future__ import annotations

import sys

import digits
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import perseus.mxnet as perseus

EPOCHS, BATCH, LEARNING_RATE, FEATURES, CLASSES = 6, 60, 0.2, 64, 10


class SplitSoftmax:
    """Cross-entropy over a fully connected layer, whose rows are split over the workers."""

    def __init__(self, kv: perseus.KVStore) -> None:
        self.kv = kv
        self.rows = -(-CLASSES // kv.num_workers)
        self.first = kv.rank * self.rows
        # Padding classes take no part in the softmax.
        classes = np.arange(self.first, self.first + self.rows)
        self.mask = mx.nd.array(np.where(classes < CLASSES, 0.0, -1e9))
        self.weight = mx.nd.random.normal(0, 0.1, (self.rows, FEATURES))
        for name in ("max", "sum", "target"):
            kv.init(name, mx.nd.zeros((BATCH,)), param_only=True)
        kv.init("features", mx.nd.zeros((BATCH, FEATURES)), param_only=True)

    def reduced(self, name: str, array: mx.nd.NDArray, op: int) -> mx.nd.NDArray:
        self.kv.push(name, array, op=op)
        self.kv.pull(name, array)
        return array

    def logits(self, features: mx.nd.NDArray) -> mx.nd.NDArray:
        return mx.nd.dot(features, self.weight, transpose_b=True) + self.mask

    def step(
        self, features: mx.nd.NDArray, labels: mx.nd.NDArray
    ) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """Returns the losses of all images and the gradient of their features; updates the rows.

        Takes the features [BATCH, FEATURES] and labels [BATCH] of all workers.
        """
        logits = self.logits(features)
        highest = self.reduced("max", logits.max(axis=1), perseus.PerseusOp.Max)
        exponentials = mx.nd.exp(logits - highest.expand_dims(1))
        total = self.reduced("sum", exponentials.sum(axis=1), perseus.PerseusOp.Sum)
        # All zeros where the class belongs to another worker.
        one_hot = mx.nd.one_hot(labels - self.first, self.rows)
        of_label = self.reduced("target", (logits * one_hot).sum(axis=1), perseus.PerseusOp.Sum)
        losses = mx.nd.log(total) + highest - of_label

        gradient = (exponentials / total.expand_dims(1) - one_hot) / BATCH
        of_features = self.reduced(
            "features", mx.nd.dot(gradient, self.weight), perseus.PerseusOp.Sum
        )
        self.weight -= LEARNING_RATE * mx.nd.dot(gradient, features, transpose_a=True)
        return losses, of_features


def main() -> None:
    kv = perseus.create("dist_sync_perseus")
    if BATCH % kv.num_workers:
        sys.exit(f"the batch of {BATCH} cannot be split over {kv.num_workers} workers")
    mx.random.seed(kv.rank)  # the rows of each worker are its own
    (images, labels), (test_images, test_labels) = digits.load()

    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(128, activation="relu"), gluon.nn.Dense(FEATURES, activation="relu"))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    perseus.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": LEARNING_RATE}, kvstore=kv
    )
    last = SplitSoftmax(kv)
    own_rows = slice(kv.rank * BATCH // kv.num_workers, (kv.rank + 1) * BATCH // kv.num_workers)

    for epoch in range(EPOCHS):
        for own in digits.own_batches(len(labels), BATCH, epoch, kv.rank, kv.num_workers):
            with autograd.record():
                features = net(mx.nd.array(images[own]))
            of_all = perseus.allgather(features)
            labels_of_all = perseus.allgather(mx.nd.array(labels[own]))
            whole = whole_loss(last, of_all, labels_of_all)
            losses, gradient = last.step(of_all, labels_of_all)
            if abs(losses.mean().asscalar() - whole) > 1e-5:
                sys.exit(f"the loss is {losses.mean().asscalar()}, and {whole} of the whole layer")
            features.backward(gradient[own_rows])
            trainer.step(1)  # the gradient is of the mean over all workers' images
        if kv.rank == 0:
            print(f"epoch {epoch + 1}: loss {losses.mean().asscalar():.4f}")

    scores = last.logits(net(mx.nd.array(test_images)))
    # In the order of the workers, which is that of the classes.
    scores = perseus.allgather(scores.T).T.asnumpy()
    accuracy = (scores.argmax(axis=1) == test_labels).mean()
    if kv.rank == 0:
        print(
            f"{kv.num_workers} workers with {last.rows} of {CLASSES} classes each: "
            f"test accuracy {100 * accuracy:.1f} %"
        )
    if accuracy < 0.85:
        sys.exit("the digits were not learnt")


def whole_loss(last: SplitSoftmax, features: mx.nd.NDArray, labels: mx.nd.NDArray) -> float:
    """Returns the mean loss of the assembled layer, in float64."""
    weight = perseus.allgather(last.weight).asnumpy()[:CLASSES].astype(np.float64)
    logits = features.asnumpy().astype(np.float64) @ weight.T
    highest = logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(logits - highest).sum(axis=1)) + highest[:, 0]
    return float((log_sum - logits[np.arange(BATCH), labels.asnumpy().astype(int)]).mean())


if __name__ == "__main__":
    main()
