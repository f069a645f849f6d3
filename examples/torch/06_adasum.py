"""Adasum: averages gradients that agree, and adds gradients that are orthogonal.

    perseusrun -np 3 python examples/torch/06_adasum.py

So a step is about as long as each rank alone would take, and the learning rate need not be chosen
for the number of ranks (Maleki et al. 2021, "Scaling Distributed Training with Adaptive
Summation"). Any number of ranks works.
"""

from __future__ import annotations

import digits
import torch
from checks import require, require_equal_parameters
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import perseus.torch.horovod as hvd

EPOCHS, BATCH, LEARNING_RATE = 2, 60, 0.05


def show_what_it_does() -> None:
    same = hvd.allreduce(torch.tensor([3.0, 4.0]), op=hvd.Adasum, name="same")
    require(torch.allclose(same, torch.tensor([3.0, 4.0])), f"of equal vectors: {same}")

    axis = torch.zeros(hvd.size())
    axis[hvd.rank()] = 2.0
    apart = hvd.allreduce(axis, op=hvd.Adasum, name="apart")
    require(torch.allclose(apart, torch.full_like(apart, 2.0)), f"of orthogonal vectors: {apart}")
    if hvd.rank() == 0:
        print(f"Adasum of {hvd.size()} equal vectors: {same.tolist()}")
        print(f"Adasum of {hvd.size()} orthogonal vectors: {apart.tolist()}")


def train(data: TensorDataset) -> nn.Module:
    images, labels = data.tensors
    model = digits.make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9),
        named_parameters=model.named_parameters(),
        op=hvd.Adasum,
    )
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            own = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            F.cross_entropy(model(images[own]), labels[own]).backward()
            optimizer.step()
    return model


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)  # one process a core
    show_what_it_does()

    data, test = digits.load()
    model = train(data)
    require_equal_parameters(model)
    accuracy = digits.recognised(model, *test.tensors).item() / len(test)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks: test accuracy {100 * accuracy:.1f} %")
    require(accuracy > 0.8, "the digits were not learnt")


if __name__ == "__main__":
    main()
