"""Trains on MNIST digits while ranks come and go: add and remove lines of the file of hosts.

    echo localhost:2 > hosts
    perseusrun -np 2 --min-np 1 --watch-hostfile hosts python examples/torch/09_elastic.py
    echo 127.0.0.1:1 >> hosts                             # meanwhile, from another shell

No process is started again, and each epoch has each image once, whoever has joined or left in its
middle. `localhost` and `127.0.0.1` count as two hosts.
"""

from __future__ import annotations

import argparse
import time

import digits
import torch
from checks import require, require_equal_parameters
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import perseus.torch.horovod as hvd


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)  # one process a core
    images, test = digits.load()
    model = digits.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(images, last_round="carry")
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, seen=[])

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: {hvd.size()} ranks", flush=True)
        while state.epoch < arguments.epochs:
            state.sampler.set_epoch(state.epoch)
            loader = DataLoader(images, arguments.batch_size, sampler=state.sampler)
            for number, (inputs, targets) in enumerate(loader):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                state.sampler.record_batch(number, len(targets))
                time.sleep(arguments.pause)
                state.commit()
            state.seen = [*state.seen, state.sampler.processed_num]
            state.epoch += 1

    train(state)
    accuracy = test_accuracy(model, test)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks at the end: test accuracy {100 * accuracy:.1f} %")
        print(f"images in each epoch: {state.seen}")
    require_equal_parameters(model)
    # The images that an epoch leaves over are the first of the next one.
    every = len(images) * arguments.epochs
    require(every - hvd.size() < sum(state.seen) <= every, "images were lost or seen twice")
    require(accuracy >= arguments.wanted_accuracy, "the test accuracy is too low")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16, help="images a step and rank")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--wanted-accuracy", type=float, default=0.9)
    return parser.parse_args()


@torch.no_grad()
def test_accuracy(model: torch.nn.Module, test: TensorDataset) -> float:
    """Returns the share of the test images that the model gets right. Each rank tests all."""
    inputs, targets = next(iter(DataLoader(test, len(test))))
    return float((model(inputs).argmax(1) == targets).float().mean())


if __name__ == "__main__":
    main()
