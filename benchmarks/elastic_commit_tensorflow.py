"""The time of a step of TensorFlow with a commit after it.

python benchmarks/elastic_commit_tensorflow.py [--models resnet50 bert-base] [--trained 1]
    [--rounds 20]

One process has the variables of a model, and momenta. A step changes a share of them, as if the
rest were frozen. Four ways to commit take turns: none; the save of a TensorFlowState, which keeps
tensors, so that the next step copies what it writes to; a copy of each variable, out of its own
memory into that of the last copy; and the same by way of `variable.numpy()`, which makes another
copy. Each has variables of its own.
"""

import argparse
import math
import os
from collections.abc import Callable
from typing import Any

from contest import ending, models
from contest.arguments import Different, at_least, share
from contest.in_process import print_times

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def ways(name: str, trained: float) -> dict[str, Callable[[], object]]:
    """Returns a step with each of the ways to commit after it."""
    import numpy as np
    import tensorflow as tf

    import perseus.tensorflow.horovod as hvd

    hvd.init()
    shapes = [tensor.shape for tensor in models.model(name).tensors]
    count = math.ceil(trained * len(shapes))

    def made() -> tuple[list[Any], Callable[[], object]]:
        weights, momenta = ([tf.Variable(tf.ones(shape)) for shape in shapes] for _ in range(2))

        @tf.function
        def step() -> None:
            for weight, momentum in zip(weights[-count:], momenta[-count:], strict=True):
                momentum.assign(0.9 * momentum + 0.1)
                weight.assign_sub(0.001 * momentum)

        return [*weights, *momenta], step

    def committing(save_of: Callable[[list[Any]], Callable[[], object]]) -> Callable[[], object]:
        variables, step = made()
        save = save_of(variables)

        def work() -> None:
            step()
            save()

        return work

    def copying(value_of: Callable[[Any], Any]) -> Callable[[list[Any]], Callable[[], object]]:
        def save_of(variables: list[Any]) -> Callable[[], object]:
            copies = [np.array(value_of(variable)) for variable in variables]

            def save() -> None:
                for target, variable in zip(copies, variables, strict=True):
                    np.copyto(target, value_of(variable))

            return save

        return save_of

    return {
        "TensorFlowState.save": committing(lambda each: hvd.elastic.TensorFlowState(each).save),
        "no commit": committing(lambda variables: lambda: None),
        "one copy": committing(copying(lambda each: np.asarray(each.read_value()))),
        "copy of numpy()": committing(copying(lambda each: each.numpy())),
    }


def measure(name: str, trained: float, rounds: int) -> None:
    contenders = ways(name, trained)
    size = 2 * 4 * models.model(name).elements
    title = f"{name}: {size / 1e6:.0f} MB, of which a step changes {trained:.0%} of the tensors"
    print_times(title, contenders, rounds, reference="TensorFlowState.save", warm_up=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--models",
        nargs="+",
        action=Different,
        choices=list(models.NAMES),
        default=["resnet50"],
    )
    parser.add_argument("--trained", type=share, default=1.0, help="the share that a step changes")
    parser.add_argument("--rounds", type=at_least(1), default=20)
    args = parser.parse_args()
    for name in args.models:
        measure(name, args.trained, args.rounds)


if __name__ == "__main__":
    with ending.by_exception():
        main()
