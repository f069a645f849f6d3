"""A loop with HuggingFace's accelerate, whose process group is Perseus's.

accelerate takes the process group that is there, so this one line comes first.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch_digits
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.nn import functional as F
from torch.utils.data import DataLoader

import perseus.torch  # noqa: F401  it registers the backend

EPOCHS = 10


def main() -> None:
    if "--alone" not in sys.argv:
        dist.init_process_group("perseus")
    # The order of the data is the same at any number of processes.
    order = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    accelerator = Accelerator(cpu=True, dataloader_config=order)
    rank, size = accelerator.process_index, accelerator.num_processes
    model = torch_digits.make_model(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trained, tested = torch_digits.data()
    loader = DataLoader(trained, torch_digits.BATCH // size, shuffle=True)
    test_loader = DataLoader(tested, 64)
    model, optimizer, loader, test_loader = accelerator.prepare(
        model, optimizer, loader, test_loader
    )
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(images), labels))
            accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()

    right = []
    with torch.no_grad():
        for images, labels in test_loader:
            right.append(accelerator.gather_for_metrics(model(images).argmax(dim=1) == labels))
    whole = accelerator.unwrap_model(model)
    gathered = float(torch.cat(right).float().mean())
    if gathered != torch_digits.accuracy(whole):
        sys.exit(f"rank {rank}: the ranks together are right in {gathered}")
    torch_digits.keep(rank, whole)
    accelerator.end_training()


if __name__ == "__main__":
    main()
