"""Training speed in images per second, on made-up data, with the flags of Horovod's benchmark.

    perseusrun -np 2 python examples/torch/02_synthetic_benchmark.py
    ... --model resnet50 --image-size 224 --batch-size 32     # with torchvision, any of its models
    ... --fp16-allreduce
    ... --use-adasum

By default, it uses a small model and few batches, and ends in seconds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from checks import require_equal_parameters
from torch import nn
from torch.nn import functional as F

import perseus.torch.horovod as hvd

CLASSES = 10


class Block(nn.Module):
    """Two convolutions and a shortcut around them, as in He et al. 2016, section 4.2."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.around = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(images) + self.around(images))


def resnet(_: int) -> nn.Module:
    sizes = [(3, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
    blocks = [Block(*size) for size in sizes]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def vgg(_: int) -> nn.Module:
    """Most of its bytes are in the dense layers at the end, which backward reaches first."""
    layers: list[nn.Module] = []
    for channels_in, channels in [(3, 16), (16, 32), (32, 64)]:
        layers += [nn.Conv2d(channels_in, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, 1024), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES))


def mlp(image_size: int) -> nn.Module:
    """Computes little for its size, so communication shows."""
    sizes = [3 * image_size**2, 512, 512, 512]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, CLASSES))


MODELS = {"resnet": resnet, "vgg": vgg, "mlp": mlp}


def make_model(name: str, image_size: int) -> nn.Module:
    if name in MODELS:
        return MODELS[name](image_size)
    try:
        from torchvision import models
    except ImportError:
        sys.exit(f"there is no model {name} without torchvision: use {', '.join(MODELS)}")
    return getattr(models, name)(num_classes=CLASSES)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--fp16-allreduce", action="store_true", help="halve the bytes on the wire")
    add("--model", default="resnet", help=f"{', '.join(MODELS)}, or one of torchvision")
    add("--batch-size", type=int, default=16, help="images per step and rank")
    add("--image-size", type=int, default=32)
    add("--num-warmup-batches", type=int, default=4, help="batches that do not count")
    add("--num-batches-per-iter", type=int, default=4)
    add("--num-iters", type=int, default=5, help="number of speed measurements")
    add("--use-adasum", action="store_true", help="combine gradients by Adasum")
    add("--no-cuda", action="store_true", help="accepted, but tensors are in CPU memory anyway")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)  # one process a core
    torch.manual_seed(hvd.rank())
    model = make_model(arguments.model, arguments.image_size)

    # Adasum chooses the step's length itself; an average of more gradients justifies a larger step.
    learning_rate = 0.01 if arguments.use_adasum else 0.01 * hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if arguments.use_adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(arguments.batch_size, 3, arguments.image_size, arguments.image_size)
    labels = torch.randint(CLASSES, (arguments.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    say(f"Model: {arguments.model}")
    say(f"Batch size: {arguments.batch_size}")
    say(f"Number of CPUs: {hvd.size()}")
    measure(step, arguments)
    require_equal_parameters(model)


def measure(step: Callable[[], None], arguments: argparse.Namespace) -> None:
    say("Running warmup...")
    for _ in range(arguments.num_warmup_batches):
        step()
    say("Running benchmark...")
    speeds = []
    for iteration in range(arguments.num_iters):
        began = time.perf_counter()
        for batch in range(arguments.num_batches_per_iter):
            step()
            show_progress(iteration * arguments.num_batches_per_iter + batch + 1, arguments)
        seconds = time.perf_counter() - began
        speeds.append(arguments.batch_size * arguments.num_batches_per_iter / seconds)
        say(f"Iter #{iteration}: {speeds[-1]:.1f} img/sec per CPU")
    mean = statistics.fmean(speeds)
    spread = 1.96 * statistics.pstdev(speeds)  # 95 % of a normal distribution
    say(f"Img/sec per CPU: {mean:.1f} +-{spread:.1f}")
    total, total_spread = hvd.size() * mean, hvd.size() * spread
    say(f"Total img/sec on {hvd.size()} CPU(s): {total:.1f} +-{total_spread:.1f}")


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def show_progress(batch: int, arguments: argparse.Namespace) -> None:
    batches = arguments.num_iters * arguments.num_batches_per_iter
    if hvd.rank() == 0:
        bar = "#" * (30 * batch // batches)
        end = "\n" if batch == batches else "\r"
        print(f"[{bar:.<30}] {batch}/{batches}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
