"""Trains a small CNN on scikit-learn's digits as one of N ranks, and beside it alone.

perseusrun -np N python tests/gpu/digits.py [--quick] [--figures FILE]

Both see the same batches, the ranks a share of each. Fails if the digits are not recognised, or if
the losses of the ranks, on average, are not those of the process that trained alone.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time

import place
import torch
from torch import nn

import perseus.torch.horovod as hvd

BATCH = 96  # of all ranks; a multiple of 1, 2, 3 and 4
TRAINED = 1440
ACCURACY = 0.95
# Rounding alone: sums of shares differ from sums of the whole by some 1e-7, which the steps carry
# on. The model is smooth, so that they don't blow it up.
TOLERANCE = 1e-3


def load(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images [1, 8, 8] from 0 to 1, in an order that is the same everywhere."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        sys.exit("the digits are missing: they come with scikit-learn")
    digits = load_digits()
    order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(digits.images).float().unsqueeze(1)[order] / 16
    return images.to(device), torch.from_numpy(digits.target).long()[order].to(device)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 3, padding=1)]
    layers += [nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    place.add_arguments(parser)
    args = parser.parse_args()
    hvd.init()
    device = place.device()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    images, labels = load(device)
    if BATCH % hvd.size():
        sys.exit(f"a batch of {BATCH} cannot be shared by {hvd.size()} ranks")
    share = BATCH // hvd.size()
    mine = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    model = make_model().to(device)
    alone = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 if hvd.rank() == 0 else 0)  # the root's are to come
    options = {"lr": 0.1, "momentum": 0.9}
    own = torch.optim.SGD(alone.parameters(), **options)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), **options), model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    losses, losses_alone = [], []
    seconds = 0.0
    generator = torch.Generator().manual_seed(1)
    for _ in range(15 if args.quick else 25):
        order = torch.randperm(TRAINED, generator=generator)
        place.synchronize()
        begin = time.perf_counter()
        for batch in order.split(BATCH):
            chosen = batch[mine].to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        place.synchronize()
        seconds += time.perf_counter() - begin
        for batch in order.split(BATCH):
            chosen = batch.to(device)
            own.zero_grad()
            loss = nn.functional.cross_entropy(alone(images[chosen]), labels[chosen])
            loss.backward()
            own.step()
            losses_alone.append(loss.detach())
    mean = hvd.allreduce(torch.stack(losses), name="losses")
    difference = (mean - torch.stack(losses_alone)).abs().max().item()
    with torch.no_grad():
        right = model(images[TRAINED:]).argmax(dim=1) == labels[TRAINED:]
    accuracy = right.float().mean().item()
    if hvd.rank() == 0:
        found = {
            "accuracy": round(accuracy, 4),
            "first and last loss": [round(mean[0].item(), 4), round(mean[-1].item(), 4)],
            "largest difference of a loss": float(f"{difference:.2e}"),
            "images/s": round(BATCH * len(losses) / seconds),
        }
        place.keep(found, args.figures)
    hvd.barrier()
    hvd.shutdown()
    if accuracy < ACCURACY:
        sys.exit(f"only {accuracy:.3f} of the digits are recognised, of {ACCURACY} expected")
    if difference > TOLERANCE:
        sys.exit(f"losses differ from those of one process by up to {difference:.2e}")


if __name__ == "__main__":
    main()
