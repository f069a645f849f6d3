"""DeepSpeed's engine over Perseus, with its ZeRO stages.

torchrun --nproc-per-node 2 deepspeed_zero.py --stage 2
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

EPOCHS, LEARNING_RATE, MOMENTUM = 5, 0.1, 0.9
CLIPPED = 1.0  # DeepSpeed's default


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)


def train_alone() -> None:
    """Trains with PyTorch alone, in one process."""
    model = torch_digits.make_model(0)
    optimizer = optimizer_of(model)
    for _ in range(EPOCHS):
        for images, labels in DataLoader(torch_digits.data()[0], torch_digits.BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIPPED)
            optimizer.step()
    torch_digits.keep(0, model)


def train(stage: int) -> None:
    import deepspeed

    import perseus.torch  # noqa: F401  it registers the backend

    deepspeed.init_distributed(dist_backend="perseus")
    assert dist.get_backend() == "perseus"
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch_digits.make_model(rank)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer_of(model),
        config={
            "train_micro_batch_size_per_gpu": torch_digits.BATCH // size,
            "gradient_clipping": CLIPPED,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    trained = torch_digits.data()[0]
    sampler = DistributedSampler(trained, size, rank, shuffle=False)
    loader = DataLoader(trained, torch_digits.BATCH // size, sampler=sampler)
    for _ in range(EPOCHS):
        for images, labels in loader:
            loss = F.cross_entropy(engine(images), labels)
            engine.backward(loss)
            engine.step()
    # At stage 3, a rank holds a part of each parameter.
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        whole = torch_digits.make_model(0)
        with torch.no_grad():
            for mine, theirs in zip(whole.parameters(), model.parameters(), strict=True):
                mine.copy_(theirs)
    torch_digits.keep(rank, whole)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, required=True, help="0 to 3")
    parser.add_argument("--alone", action="store_true", help="with PyTorch alone")
    args = parser.parse_args()
    if args.alone:
        train_alone()
    else:
        train(args.stage)


if __name__ == "__main__":
    main()
