"""How much of a training step overlap_forward saves where the network is the bottleneck.

python benchmarks/forward_overlap.py [--ranks 2 | --hosts a:1,b:1] [--layers 24] [--width 512]
                                     [--forward 1.5 | --batch 512] [--rounds 8]

Three copies of a model train in turn: one without Perseus, one under DistributedOptimizer, one with
overlap_forward. The extra time of a step over the first copy's is exposed communication.

A layer computes for --forward milliseconds in the forward pass and twice as long in the backward
pass without using the processor, as on an accelerator. With --batch it computes on the processor,
which it then has to share with communication over sockets.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from contest import ending
from contest.arguments import at_least, positive
from contest.ranks import run


def measure(
    layers: int, width: int, forward: float, batch: int, rounds: int
) -> dict[str, list[float]]:
    """Returns the milliseconds of each step."""
    import torch

    import perseus.torch.horovod as hvd

    hvd.init()
    torch.set_num_threads(1)

    class Compute(torch.autograd.Function):
        """Takes as long as a layer on an accelerator: the forward time, and twice that in
        backward."""

        @staticmethod
        def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
            time.sleep(forward / 1e3)
            return inputs.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            time.sleep(2 * forward / 1e3)
            return grad

    class Layer(torch.nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(inputs)
            return outputs if batch else Compute.apply(outputs)

    class Trainer:
        def __init__(self, name: str, **options: bool) -> None:
            self.model = torch.nn.Sequential(*[Layer(width, width) for _ in range(layers)])
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
                self.model.parameters(), lr=1e-4, momentum=0.9
            )
            if name != "alone":
                named = [(f"{name}.{key}", p) for key, p in self.model.named_parameters()]
                self.optimizer = hvd.DistributedOptimizer(self.optimizer, named, **options)

        def step(self) -> float:
            began = time.perf_counter()
            self.optimizer.zero_grad()
            self.model(inputs).square().mean().backward()
            self.optimizer.step()
            return (time.perf_counter() - began) * 1e3

    inputs = torch.randn(batch or 1, width)
    trainers = {
        "alone": Trainer("alone"),
        "waiting": Trainer("waiting"),
        "overlapping": Trainer("overlapping", overlap_forward=True),
    }
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            hvd.barrier()
            # The first of several steps has nothing to hide its communication behind.
            taken = [trainer.step() for _ in range(4)][1:]
            times[name] += taken
            trainer.model.state_dict()
    hvd.shutdown()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(1), default=2)
    parser.add_argument("--hosts")
    parser.add_argument("--layers", type=at_least(1), default=24)
    parser.add_argument("--width", type=at_least(1), default=512)
    parser.add_argument("--forward", type=positive, default=1.5)
    parser.add_argument("--batch", type=at_least(0), default=0)
    parser.add_argument("--rounds", type=at_least(1), default=8)
    args = parser.parse_args()
    ranks = run(
        measure,
        args=(args.layers, args.width, args.forward, args.batch, args.rounds),
        num_proc=args.ranks,
        hosts=args.hosts,
    )
    gradient_bytes = 4 * args.layers * args.width * (args.width + 1)
    print(f"milliseconds of a step with {gradient_bytes / 1e6:.1f} MB of gradients, median")
    slowest = {name: max(statistics.median(times[name]) for times in ranks) for name in ranks[0]}
    for name, value in slowest.items():
        exposed = value - slowest["alone"]
        print(f"  {name:12} {value:7.1f}   exposed communication {exposed:7.1f}")
    print(f"  overlapping / waiting: {slowest['overlapping'] / slowest['waiting']:.2f}")


if __name__ == "__main__":
    with ending.by_exception():
        main()
