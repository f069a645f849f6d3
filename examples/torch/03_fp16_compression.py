"""Gradients with half the bytes: float16 by Compression.fp16, bfloat16 by a class of your own.

    perseusrun -np 2 python examples/torch/03_fp16_compression.py

Trains the same model three times, and compares accuracy and bytes. float16 has more digits;
bfloat16 has float32's range, so that no gradient is too large or too small for it.
"""

from __future__ import annotations

from typing import Any

import digits
import torch
from checks import require, require_equal_parameters
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import perseus.torch.horovod as hvd
import perseus_core

EPOCHS, BATCH, LEARNING_RATE = 2, 60, 0.08


class Bfloat16:
    """The interface of `compression`: two functions, and a context from the first for the
    second."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor.to(torch.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


def train(compression: Any, data: TensorDataset) -> tuple[nn.Module, int]:
    """Returns the model, and the bytes of gradients that this rank submitted."""
    images, labels = data.tensors
    model = digits.make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    before = perseus_core.counters()["bytes_reduced"]
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            own = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            F.cross_entropy(model(images[own]), labels[own]).backward()
            optimizer.step()
    return model, perseus_core.counters()["bytes_reduced"] - before


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)  # one process a core
    data, test = digits.load()
    accuracies, sent = {}, {}
    for name, compression in {
        "none": hvd.Compression.none,
        "fp16": hvd.Compression.fp16,
        "bf16": Bfloat16,
    }.items():
        model, sent[name] = train(compression, data)
        accuracies[name] = digits.recognised(model, *test.tensors).item() / len(test)
        require_equal_parameters(model)
        if hvd.rank() == 0:
            print(f"{name}: {sent[name] / 1e6:.1f} MB, accuracy {100 * accuracies[name]:.1f} %")

    for name in ("fp16", "bf16"):
        # A little is sent as it is: the ranks compare the names of their parameters.
        halved = 2 * sent[name] < 1.01 * sent["none"]
        require(halved, f"{name} did not halve the bytes")
        lost = accuracies["none"] - accuracies[name]
        require(lost < 0.02, f"{name} lost {100 * lost:.1f} % of accuracy")
    require(accuracies["none"] > 0.9, "the digits were not learnt")


if __name__ == "__main__":
    main()
