"""DeepSpeed's pipelines over Perseus: a stage on each rank.

torchrun --nproc-per-node 2 deepspeed_pipeline.py
"""

from __future__ import annotations

import argparse
import itertools

import torch
import torch.distributed as dist
import torch_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

EPOCHS, LEARNING_RATE, MOMENTUM = 5, 0.1, 0.9
MICROBATCHES = 8
CLIPPED = 1.0  # DeepSpeed's default
WIDTH = 48


def layers_of(rank: int) -> list[nn.Module]:
    """Returns the layers, which are divided evenly among 2 or 4 stages."""
    torch.manual_seed(rank)
    return [
        nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.SiLU()),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()),
        nn.Linear(WIDTH, 10),
    ]


def optimizer_of(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, LEARNING_RATE, MOMENTUM)


def train_alone() -> None:
    """Trains with PyTorch alone, in one process."""
    model = nn.Sequential(*layers_of(0))
    optimizer = optimizer_of(model.parameters())
    for _ in range(EPOCHS):
        for images, labels in DataLoader(torch_digits.data()[0], torch_digits.BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIPPED)
            optimizer.step()
    torch_digits.keep(0, model)


def train() -> None:
    import deepspeed
    from deepspeed.pipe import PipelineModule

    import perseus.torch  # noqa: F401  it registers the backend

    deepspeed.init_distributed(dist_backend="perseus")
    assert dist.get_backend() == "perseus"
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = layers_of(0)
    pipeline = PipelineModule(
        layers, num_stages=size, loss_fn=F.cross_entropy, partition_method="uniform"
    )
    engine, _, _, _ = deepspeed.initialize(
        model=pipeline,
        optimizer=optimizer_of(list(pipeline.parameters())),
        config={
            "train_batch_size": torch_digits.BATCH,
            "train_micro_batch_size_per_gpu": torch_digits.BATCH // MICROBATCHES,
            "gradient_clipping": CLIPPED,
        },
    )
    trained = torch_digits.data()[0]
    batches = itertools.cycle(DataLoader(trained, torch_digits.BATCH // MICROBATCHES))
    for _ in range(EPOCHS * len(trained) // torch_digits.BATCH):
        engine.train_batch(batches)
    # A rank has trained the layers of its own stage.
    each = len(layers) // size
    stages: list[object] = [None] * size
    dist.all_gather_object(
        stages, [layer.state_dict() for layer in layers[rank * each : (rank + 1) * each]]
    )
    for layer, state in zip(layers, itertools.chain(*stages), strict=True):
        layer.load_state_dict(state)
    torch_digits.keep(rank, nn.Sequential(*layers))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alone", action="store_true", help="with PyTorch alone")
    args = parser.parse_args()
    if args.alone:
        train_alone()
    else:
        train()


if __name__ == "__main__":
    main()
