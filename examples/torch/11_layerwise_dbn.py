"""A deep belief network: layers that are pre-trained at once, each rank its own, then fine-tuned.

    perseusrun -np 2 python examples/torch/11_layerwise_dbn.py

Four RBMs learn from 4,000 digits without their labels. Each rank has a block of them, and gets
what the RBMs below make of the digits while these still learn. Then all ranks get all parameters,
and the whole network learns the labels of 400 digits by data parallelism, beside one without
pre-training.
"""

from __future__ import annotations

import digits
import torch
from checks import require, require_equal_parameters
from torch import nn

import perseus.torch.horovod as hvd
from perseus.pipeline.layerwise import RBM, LayerWise

WIDTH, LAYERS = 128, 4
ROWS, EPOCHS = 128, 20
LABELLED, TUNING_EPOCHS = 400, 30


def make_stages() -> list[RBM]:
    """RBMs whose hidden units have tanh as their mean. All ranks make the same."""
    stages = [RBM(784, WIDTH, hidden_units="bipolar", seed=0)]
    for seed in range(1, LAYERS):
        stages.append(RBM(WIDTH, WIDTH, visible_units="bipolar", hidden_units="bipolar", seed=seed))
    return stages


def epoch_of(images: torch.Tensor, epoch: int) -> list[torch.Tensor]:
    """Returns the mini-batches of an epoch, in an order of its own."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    return list(images[order].split(ROWS))


def fine_tune(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Each rank takes its share of every batch."""
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        named_parameters=network.named_parameters(),
    )
    for epoch in range(TUNING_EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(100):
            own = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[own]), labels[own]).backward()
            optimizer.step()
    require_equal_parameters(network)


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, test = digits.load()
    images, labels = train.tensors[0].flatten(1), train.tensors[1]

    initial = nn.Sequential()
    for inputs in [784, *[WIDTH] * (LAYERS - 1)]:
        initial.append(nn.Linear(inputs, WIDTH)).append(nn.Tanh())
    initial.append(nn.Linear(WIDTH, 10))
    pipeline = LayerWise(make_stages(), chunk=2)
    times = pipeline.train(lambda epoch: epoch_of(images, epoch), EPOCHS)
    pipeline.collect()
    trained = pipeline.network(nn.Linear(WIDTH, 10))

    some = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))[:LABELLED]
    accuracy = {}
    for name, network in {"initial": initial, "pre-trained": trained}.items():
        fine_tune(network, images[some], labels[some])
        right = digits.recognised(network, test.tensors[0].flatten(1), test.tensors[1])
        accuracy[name] = 100 * int(right) / len(test)
    if hvd.rank() == 0:
        print(*times, sep="\n")
        for name, value in accuracy.items():
            print(f"{name} network, {LABELLED} labels: test accuracy {value:.1f} %")
    require(accuracy["pre-trained"] > accuracy["initial"], "pre-training did not help")


if __name__ == "__main__":
    main()
