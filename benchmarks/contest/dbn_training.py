"""The work of dbn.py: deep belief networks, greedily and as a pipeline, and their fine-tuning.

Everything here runs in one process and one thread; the pipeline's result on ranks is the same, bit
for bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from contest.dbn_data import Data
from perseus.pipeline.layerwise import RBM, LayerWise, StageTimes


@dataclass(frozen=True)
class Parameters:
    """Those of the paper's Table 1, unless said otherwise."""

    hidden: int = 1024
    learning_rate: tuple[float, float] = (0.015, 0.002)
    cd: int = 1
    epochs: int = 20
    batch: int = 256


def stages(data: Data, layers: int, parameters: Parameters, seed: int) -> list[RBM]:
    """RBMs with hidden units of -1 and 1, whose mean is tanh, the activation in Table 1."""
    units = [data.visible_units, *["bipolar"] * (layers - 1)]
    sizes = [data.train[0].shape[1], *[parameters.hidden] * (layers - 1)]
    return [
        RBM(
            size,
            parameters.hidden,
            visible_units=unit,
            hidden_units="bipolar",
            cd=parameters.cd,
            learning_rate=parameters.learning_rate,
            seed=1000 * seed + number,
        )
        for number, (size, unit) in enumerate(zip(sizes, units, strict=True))
    ]


class Rows:
    """Rows, cut into mini-batches in another order in each epoch; a last small one is left out.

    Calling it with an epoch's number returns that epoch's mini-batches.
    """

    def __init__(self, rows: torch.Tensor, batch: int, seed: int) -> None:
        self.rows, self.batch, self.seed = rows, batch, seed

    def __call__(self, epoch: int) -> list[torch.Tensor]:
        random = torch.Generator().manual_seed(1000 * self.seed + epoch)
        order = torch.randperm(len(self.rows), generator=random)
        whole = order[: len(order) - len(order) % self.batch]
        return [self.rows[part] for part in whole.split(self.batch)]

    def through(self, layer: RBM) -> Rows:
        """Returns the layer's results for all rows, which will come in the same order."""
        return Rows(layer.forward(self.rows), self.batch, self.seed)


@dataclass
class GreedySeconds:
    """Processor seconds of each layer: of training it, and of computing what is kept of it."""

    training: list[float]
    keeping: list[float]


def greedy(layers: Sequence[RBM], batches: Rows, epochs: int, *, recompute: bool) -> GreedySeconds:
    """Trains one RBM after the other.

    Args:
      recompute: computes the lower layers anew for each mini-batch, as the paper's times suggest.
        If not, each layer's results are computed once, when it has been trained, and kept.
    """
    seconds = GreedySeconds([], [])
    for number, layer in enumerate(layers):
        began = time.thread_time()
        lower = layers[:number] if recompute else ()
        if number:
            layer.follow(layers[number - 1].copied())
        _train(layer, lower, batches, epochs)
        trained = time.thread_time()
        if not recompute and number + 1 < len(layers):
            batches = batches.through(layer)
        seconds.training.append(trained - began)
        seconds.keeping.append(time.thread_time() - trained)
    return seconds


def _train(layer: RBM, lower: Sequence[RBM], batches: Rows, epochs: int) -> None:
    updates = epochs * len(batches(0))
    done = 0
    for epoch in range(epochs):
        for batch in batches(epoch):
            for one in lower:
                batch = one.forward(batch)
            layer.progress(done / max(1, updates - 1))
            layer.train(batch)
            done += 1


def pipelined(
    layers: Sequence[RBM], batches: Rows, epochs: int, chunk: int, delay: float
) -> list[StageTimes]:
    return LayerWise(layers, chunk=chunk, delay=delay).train(batches, epochs)


def untrained(layers: Sequence[RBM], seed: int) -> list[nn.Module]:
    """Returns layers of the same shapes with PyTorch's initial weights."""
    torch.manual_seed(seed)
    return [nn.Sequential(nn.Linear(*layer.weight.shape), nn.Tanh()) for layer in layers]


def fine_tuned(
    layers: Sequence[nn.Module], data: Data, epochs: int, batch: int, seed: int
) -> float:
    """Trains the whole network with labels, and returns the share of errors on the test rows."""
    torch.manual_seed(seed)
    network = nn.Sequential(*layers, nn.LazyLinear(data.classes))
    rows, labels = (torch.from_numpy(part) for part in data.train)
    network(rows[:1])  # makes the top
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9)
    steps = list(_orders(len(rows), batch, epochs, seed))
    for number, order in enumerate(steps):
        optimizer.param_groups[0]["lr"] = RATE * (1 - number / len(steps))
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(rows[order]), labels[order]).backward()
        optimizer.step()
    with torch.no_grad():
        found = network(torch.from_numpy(data.test[0])).argmax(1)
    return float((found != torch.from_numpy(data.test[1])).float().mean())


#: The first learning rate of fine-tuning, which falls to 0 on a straight line.
RATE = 0.05


def _orders(rows: int, batch: int, epochs: int, seed: int) -> Iterator[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(rows, generator=random).split(batch)
