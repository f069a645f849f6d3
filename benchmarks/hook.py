"""The time that the optimizer's hook adds to a backward pass, for each gradient.

python benchmarks/hook.py [--ranks 2] [--parameters 400] [--rounds 30]

Three models with the same small parameters go through backward in turn: one without hooks, one with
a hook that does nothing, one under DistributedOptimizer. Waiting for reductions is not timed, but
with few processors the engine's thread still takes its share of the timed part.

Gradients of a model with very many small parameters are not handed over one by one: the program
prints from how many parameters on.
"""

import argparse
import statistics
import time

from contest import ending
from contest.arguments import at_least
from contest.ranks import run


def measure(parameters: int, rounds: int) -> dict[str, float]:
    """Returns median microseconds of backward, for each gradient."""
    import torch

    import perseus.torch.horovod as hvd

    hvd.init()
    torch.set_num_threads(1)

    def params() -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.ones(64)) for _ in range(parameters)]

    plain, empty, hooked = params(), params(), params()
    for param in empty:
        param.register_post_accumulate_grad_hook(lambda _: None)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(hooked, lr=0.1),
        named_parameters=[(f"p{i}", param) for i, param in enumerate(hooked)],
    )
    times: dict[str, list[float]] = {"no hook": [], "an empty hook": [], "perseus": []}
    for _ in range(rounds):
        for name, group in zip(times, (plain, empty, hooked), strict=True):
            for param in group:
                param.grad = None
            loss = torch.stack([param.sum() for param in group]).sum()
            hvd.barrier()
            began = time.perf_counter()
            loss.backward()
            times[name].append((time.perf_counter() - began) / parameters * 1e6)
            if group is hooked:
                optimizer.synchronize()
    hvd.shutdown()
    return {name: statistics.median(values) for name, values in times.items()}


def in_runs(parameters: int) -> str | None:
    """Returns a line if this many parameters are not handed over one by one; else None."""
    from perseus.torch.horovod.buckets import MANY, RUN

    if parameters < MANY:
        return None
    return f"from {MANY} parameters on, gradients go {RUN} at a time: no hook hands over its own"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(1), default=2)
    parser.add_argument("--parameters", type=at_least(1), default=400)
    parser.add_argument("--rounds", type=at_least(1), default=30)
    args = parser.parse_args()
    if line := in_runs(args.parameters):
        print(line, flush=True)
    ranks = run(measure, args=(args.parameters, args.rounds), num_proc=args.ranks)
    print(f"microseconds of backward for each of {args.parameters} gradients, median, each rank")
    for name in ranks[0]:
        print(f"  {name:14} " + "  ".join(f"{times[name]:6.2f}" for times in ranks))
    added = [times["perseus"] - times["an empty hook"] for times in ranks]
    print("  added          " + "  ".join(f"{value:6.2f}" for value in added))


if __name__ == "__main__":
    with ending.by_exception():
        main()
