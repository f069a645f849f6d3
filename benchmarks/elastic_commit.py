"""The time of an elastic state's save, which every commit makes.

python benchmarks/elastic_commit.py [--models resnet50 bert-base] [--optimizer adam] [--rounds 20]

One process has the parameters of a model, and an optimizer that has taken a step. Three ways to
save them take turns: TorchState.save; a deep copy of both state dicts, as Horovod does; and one
copy of as many bytes within memory, which is the least that a save costs.
"""

import argparse
import copy
from collections.abc import Callable

from contest import ending, models
from contest.arguments import Different, at_least
from contest.in_process import print_times


def ways(name: str, optimizer_name: str) -> tuple[int, dict[str, Callable[[], object]]]:
    """Returns the bytes that are saved, and the ways to save them."""
    import torch

    import perseus.torch.horovod as hvd

    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Module()
    for i, tensor in enumerate(models.model(name).tensors):
        model.register_parameter(f"p{i}", torch.nn.Parameter(torch.ones(tensor.shape)))
    if optimizer_name == "adam":
        optimizer = torch.optim.Adam(model.parameters())
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = hvd.elastic.TorchState(model, optimizer)

    copies = {"sgd": 2, "adam": 3}[optimizer_name]
    memory = torch.ones(copies * models.model(name).elements)
    target = torch.empty_like(memory)
    return memory.nbytes, {
        "TorchState.save": state.save,
        "deep copy": lambda: copy.deepcopy((model.state_dict(), optimizer.state_dict())),
        "one copy": lambda: target.copy_(memory),
    }


def measure(name: str, optimizer_name: str, rounds: int) -> None:
    size, contenders = ways(name, optimizer_name)
    title = f"{name}, {optimizer_name}: {size / 1e6:.0f} MB"
    print_times(title, contenders, rounds, reference="TorchState.save", warm_up=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--models",
        nargs="+",
        action=Different,
        choices=list(models.NAMES),
        default=["resnet50", "bert-base"],
    )
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--rounds", type=at_least(1), default=20)
    args = parser.parse_args()
    for name in args.models:
        measure(name, args.optimizer, args.rounds)


if __name__ == "__main__":
    with ending.by_exception():
        main()
