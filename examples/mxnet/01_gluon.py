"""A gluon network and a training loop, with DistributedTrainer.

    perseusrun -np 2 python examples/mxnet/01_gluon.py

Trains a CNN on digits. MXNet's engine sends each layer's gradients as soon as they are ready, while
it computes those of the layers before. Ends with an error if the accuracy is too low, or if ranks
differ.
"""

from __future__ import annotations

import sys

import digits
import mxnet as mx
from mxnet import autograd, gluon

import perseus.mxnet.horovod as hvd

EPOCHS, BATCH, LEARNING_RATE = 2, 60, 0.05


def new_net() -> gluon.nn.HybridSequential:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(16, kernel_size=5, activation="relu"),
        gluon.nn.MaxPool2D(pool_size=2),
        gluon.nn.Dense(64, activation="relu"),
        gluon.nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def main() -> None:
    hvd.init()
    (images, labels), (test_images, test_labels) = digits.load()
    images, test_images = (each.reshape(-1, 1, 28, 28) for each in (images, test_images))

    net = new_net()
    # Gluon knows the shapes only after the first batch; the weights are then made equal.
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": LEARNING_RATE, "momentum": 0.9}
    )
    cost = gluon.loss.SoftmaxCrossEntropyLoss()

    for epoch in range(EPOCHS):
        total = mx.nd.zeros((1,))
        batches = digits.own_batches(len(labels), BATCH, epoch, hvd.rank(), hvd.size())
        for own in batches:
            with autograd.record():
                loss = cost(net(mx.nd.array(images[own])), mx.nd.array(labels[own]))
            loss.backward()
            trainer.step(len(own))
            total += loss.mean()
        mean = hvd.allreduce(total / len(batches), name="loss").asscalar()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {mean:.4f}")

    found = net(mx.nd.array(test_images)).asnumpy().argmax(axis=1)
    accuracy = (found == test_labels).mean()
    if hvd.rank() == 0:
        print(f"{hvd.size()} processes: test accuracy {100 * accuracy:.1f} %")
    if accuracy < 0.9:
        sys.exit("the digits were not learnt")
    for name, param in net.collect_params().items():
        if not (param.data() == hvd.broadcast(param.data(), root_rank=0)).asnumpy().all():
            sys.exit(f"{name} differs from rank 0's")


if __name__ == "__main__":
    main()
