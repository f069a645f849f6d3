"""Trains a small CNN on 5,000 MNIST digits: everything that a data-parallel script needs.

    perseusrun -np 2 python examples/torch/01_mnist.py
    python examples/torch/01_mnist.py                     # one process
    ... --checkpoint 'digits-{epoch}.pt'                  # a second run goes on where it ended

The ranks share each batch, so any number of processes trains the same model, except for the
rounding of float32 sums.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import digits
import torch
from checks import require, require_equal_parameters
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import perseus.torch.horovod as hvd


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    require(arguments.batch_size % hvd.size() == 0, "the ranks cannot share batches evenly")
    torch.set_num_threads(1)  # one process a core

    train, test = digits.load()
    sampler = DistributedSampler(train, hvd.size(), hvd.rank())
    loader = DataLoader(train, arguments.batch_size // hvd.size(), sampler=sampler, drop_last=True)

    model = digits.make_model(arguments.seed)
    # If the batch grew with the number of ranks, this would be lr * hvd.size().
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    done = resume(model, optimizer, arguments)
    seen, seconds = 0, 0.0
    for epoch in range(done + 1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, loader, epoch)
        seen += len(loader) * arguments.batch_size
        seconds += time.perf_counter() - start
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss:.3f}", flush=True)
            save(model, optimizer, arguments.checkpoint, epoch)

    accuracy = test_accuracy(model, test)
    if hvd.rank() == 0:
        speed = f", {seen / seconds:.0f} images/s" if seen else ""
        processes = "process" if hvd.size() == 1 else "processes"
        print(f"{hvd.size()} {processes}: test accuracy {100 * accuracy:.1f} %{speed}")
    require_equal_parameters(model)
    wanted = arguments.wanted_accuracy
    require(accuracy >= wanted, f"the test accuracy is below {100 * wanted:.0f} %")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=60, help="images a step, of all ranks")
    parser.add_argument("--lr", type=float, default=0.08)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wanted-accuracy", type=float, default=0.95)
    parser.add_argument("--checkpoint", metavar="FILE", help="a name with {epoch} in it")
    return parser.parse_args()


def resume(
    model: nn.Module, optimizer: torch.optim.Optimizer, arguments: argparse.Namespace
) -> int:
    """Gives all ranks the latest checkpoint's model and optimizer; returns the epochs done.

    Only rank 0 reads a file: the others need not see its disk.
    """
    done = 0
    if hvd.rank() == 0 and arguments.checkpoint:
        files = [Path(arguments.checkpoint.format(epoch=n)) for n in range(arguments.epochs + 1)]
        done = max((n for n, file in enumerate(files) if file.exists()), default=0)
        if done:
            saved = torch.load(files[done], weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            print(f"resuming after epoch {done}")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return hvd.broadcast_object(done, root_rank=0)


def save(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: str | None, epoch: int
) -> None:
    if checkpoint:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, checkpoint.format(epoch=epoch))


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, epoch: int
) -> float:
    """Makes one pass over the data; returns the mean loss over all ranks."""
    total = torch.zeros(())
    for step, (images, labels) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        show_progress(epoch, step, len(loader))
    return hvd.allreduce(total / len(loader), name="loss").item()


def show_progress(epoch: int, step: int, steps: int) -> None:
    if hvd.rank() == 0 and (step % 6 == 0 or step == steps):
        bar = "#" * (30 * step // steps)
        end = "\n" if step == steps else "\r"
        print(f"epoch {epoch} [{bar:.<30}] {step}/{steps}", end=end, file=sys.stderr, flush=True)


def test_accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Returns the share of images that are recognised; each rank tests its own part."""
    images, labels = test[hvd.rank() :: hvd.size()]
    right = hvd.allreduce(digits.recognised(model, images, labels), op=hvd.Sum, name="right")
    return right.item() / len(test)


if __name__ == "__main__":
    main()
