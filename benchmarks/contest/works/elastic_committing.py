"""A rank of an elastic job that times commits with and without copies, which take turns.

python elastic_committing.py {1-gb,resnet50} [--rounds 20]

Prints the bytes of the model, and the median milliseconds of a commit of each kind.
"""

import argparse
import statistics
import time

import torch

import perseus.torch.horovod as hvd
from contest import models


class Parameters(torch.nn.Module):
    """Those of a model; each normalisation has its running statistics, too."""

    def __init__(self, name: str) -> None:
        super().__init__()
        for i, tensor in enumerate(models.model(name).tensors):
            self.register_parameter(f"p{i}", torch.nn.Parameter(torch.ones(tensor.shape)))
            if len(tensor.shape) == 1 and tensor.name.endswith("weight"):
                self.register_buffer(f"mean{i}", torch.zeros(tensor.shape))
                self.register_buffer(f"variance{i}", torch.ones(tensor.shape))
                self.register_buffer(f"batches{i}", torch.tensor(0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["1-gb", "resnet50"])
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    if args.model == "1-gb":
        model: torch.nn.Module = torch.nn.Linear(10_000, 25_000, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        model = Parameters(args.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    states = {
        "with copies": hvd.elastic.TorchState(model, optimizer, step=0),
        "copies=False": hvd.elastic.TorchState(model, optimizer, copies=False, step=0),
    }
    times: dict[str, list[float]] = {kind: [] for kind in states}

    def train(_: object) -> None:
        for number in range(args.rounds + 2):  # the first two only warm up
            optimizer.step()
            for kind, state in states.items():
                began = time.perf_counter()
                state.commit()
                if number >= 2:
                    times[kind].append(time.perf_counter() - began)

    hvd.elastic.run(train)(states["with copies"])
    tensors = [*model.state_dict().values()]
    tensors += [each["momentum_buffer"] for each in optimizer.state.values() if each]
    medians = [statistics.median(of_kind) * 1e3 for of_kind in times.values()]
    print("commits", sum(each.nbytes for each in tensors), *medians, flush=True)


if __name__ == "__main__":
    main()
