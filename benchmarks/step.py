"""The exposed communication of a training step: Perseus and its peers, in turns.

python benchmarks/step.py [--ranks 2] [--models vgg16 ...] [--framework torch] [--slowdown 1]
                          [--distance far] [--quick] [--json FILE] [--plot FILE]

The gradients are those of real models, as backward would produce them on a simulated accelerator
(contest/models.py, contest/works/step.py). Exposed communication is how much longer a step takes
than computing alone. Its lower bound is that of the best schedule (contest/step_bound.py), if
moving n gradients takes as long as reading and writing them once, in all ranks at once: the limit
of memory, measured in the same run. benchmarks/hosts.py does the same over links.

Then it times all gradients at once, without computing: from the first's submission to having all.
`perseus` calls hvd.allreduce_async_ for each, as scripts may by hand; "as its optimizer" does what
training with DistributedOptimizer does.

--framework tensorflow runs only this second part, in one graph that makes the gradients and reduces
them, beside the same through perseus.h: a graph cannot be paced like the accelerator. --framework
mxnet runs only this part, beside MXNet's own KVStore, with servers that sum what they are sent.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contest import charts, core_distance, ending, report, training_step
from contest.arguments import Different, at_least, positive
from contest.conductor import Conductor
from contest.launch import IN_GRAPHS, KNOWN, MXNET, ON_MXNET, OPTIMIZER
from contest.models import NAMES, V100, model

LIMIT = "memory limit"
#: The contender that measures the limit.
COPIED = 64 << 20
#: The others are compared to the first. The first ones, of PyTorch, are interfaces to submit
#: gradients by hand, and what a training script's optimizer does.
AT_ONCE = {
    "torch": (
        KNOWN["perseus"],
        OPTIMIZER,
        KNOWN["perseus numpy"],
        *(one for one in training_step.CONTENDERS if not one.program.startswith("perseus")),
    ),
    "tensorflow": (KNOWN["perseus C"], *IN_GRAPHS),
    "mxnet": ON_MXNET,
}


def measure_steps(args: argparse.Namespace, ranks: int, steps: report.Report) -> None:
    turns, iterations = (1, 3) if args.quick else (5, 10)
    contenders = training_step.contenders(peers=not args.no_peers)
    with Conductor(
        (*contenders, KNOWN[LIMIT]), ranks, time_out=600, distance=args.distance
    ) as contest:
        copied = contest.measure(
            "collective.allreduce", elements=COPIED // 4, only=[LIMIT], iterations=5
        )[LIMIT]
        del contest.contenders[LIMIT]
        seconds = (copied.median or 0.0) / 1e6 / COPIED
        if copied.reason:
            print(f"no lower bound: {copied.reason}")
        training_step.tune(contest, 0 if args.quick else args.tuning_steps)
        for name in args.models:
            rows = training_step.measure(
                steps,
                {"work": f"step of {name}", "ranks": ranks},
                contest,
                name,
                lambda size: size * seconds,
                slowdown=args.slowdown,
                turns=turns,
                iterations=iterations,
            )
            training_step.print_steps(f"step of {name}, {ranks} ranks", rows)
            steps.save()


def measure_at_once(args: argparse.Namespace, ranks: int, at_once: report.Report) -> None:
    turns, iterations = (1, 3) if args.quick else (5, 10)
    contenders = [
        one
        for one in AT_ONCE[args.framework]
        if not args.no_peers or one.label.startswith("perseus")
    ]
    with Conductor(contenders, ranks, time_out=600, distance=args.distance) as contest:
        training_step.tune(contest, 0 if args.quick else args.tuning_steps)
        for name in args.models:
            tensors = len(model(name).tensors)
            case = {"work": f"all {tensors} gradients of {name} at once", "ranks": ranks}
            at_once.add(
                case,
                contest.measure("step.gradients", turns=turns, iterations=iterations, name=name),
            )
            at_once.print_case(case)
            at_once.save()


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draws the exposed communication of the steps, and all gradients at once: beside `file`, in
    step-at-once.svg, if both were measured."""
    if content["rows"]:
        training_step.draw_exposed(content["rows"], file)
        if not content["at_once"]:
            return
        file = file.with_stem(f"{file.stem}-at-once")
    charts.by_ranks(
        content["at_once"],
        file,
        charts.Words(
            "All gradients of a model at once",
            "median time from the first gradient's submission until all are reduced",
        ),
        case="work",
        scale=charts.DURATION,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(2), nargs="+", action=Different, default=[2])
    parser.add_argument("--models", nargs="+", action=Different, choices=NAMES, default=NAMES)
    parser.add_argument("--framework", choices=list(AT_ONCE), default="torch")
    parser.add_argument("--slowdown", type=positive, default=1, help="of the accelerator")
    parser.add_argument("--only", choices=("steps", "at-once"))
    parser.add_argument("--tuning-steps", type=at_least(0), default=60, help="before measuring")
    parser.add_argument("--no-peers", action="store_true", help="Perseus alone")
    core_distance.add_argument(parser)
    report.add_arguments(parser)
    args = parser.parse_args()
    only_at_once = args.framework != "torch"
    if only_at_once and args.only == "steps":
        parser.error(f"argument --only: with {args.framework} gradients are measured at once only")
    steps = report.Report(
        "step",
        file=args.json,
        also={"accelerator": V100.name},
        environment=MXNET if args.framework == "mxnet" else None,
    )
    at_once = steps.section("at_once")
    print(f"accelerator: {V100.name}, {args.slowdown:g} times slower")
    for ranks in args.ranks:
        if args.only != "at-once" and not only_at_once:
            measure_steps(args, ranks, steps)
        if args.only != "steps":
            measure_at_once(args, ranks, at_once)
    steps.save(finished=True)
    if args.plot:
        draw(steps.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
