"""The processor time of many small gradients, by part, and the bound that follows from it.

python benchmarks/small_tensors.py [--ranks 4] [--model ctr] [--quick] [--json FILE]

All gradients of a model are started in turn and then waited for, without computing. Figures are
microseconds of processor time for each tensor, the mean over all ranks:

    hand-over  the calls that start; tensors are touched in turn, so none is in a cache
    finishing  the calls that wait, without the time that they sleep
    engine     all other threads of the process
    copy       a plain copy of all bytes: the least that any library needs

The bound: however well its threads overlap, a step takes at least the processor time of all ranks
divided by the number of cores, and at least that of one rank's busier side. The measured step is
shown beside it.
"""

from __future__ import annotations

import argparse
import os

from contest import ending, report, training_step
from contest.arguments import Different, at_least
from contest.conductor import Conductor
from contest.launch import KNOWN, OPTIMIZER
from contest.models import NAMES, model

CONTENDERS = (OPTIMIZER, KNOWN["perseus"], KNOWN["perseus numpy"])
PARTS = ("hand-over", "finishing", "engine", "copy", "wall")


def measure(
    args: argparse.Namespace, contest: Conductor, part: str, found: report.Report
) -> dict[str, float]:
    """Returns median microseconds a tensor, by contender."""
    options = {"name": args.model}
    work = "copy" if part == "copy" else "step"
    if work == "step":
        options["part"] = part
    turns, iterations = (1, 5) if args.quick else (5, 10)
    times = contest.measure(f"small_tensors.{work}", turns=turns, iterations=iterations, **options)
    case = {"work": f"{part}, us a tensor of {args.model}", "ranks": contest.ranks}
    found.add(case, times)
    found.print_case(case)
    found.save()
    return {label: of.median for label, of in times.items() if of.median is not None}


def bound(parts: dict[str, float], ranks: int, cores: int) -> float:
    """Returns the least microseconds a tensor that a step can take."""
    own, engine = parts["hand-over"] + parts["finishing"], parts["engine"]
    return max((own + engine) * ranks / cores, own, engine)


def print_bounds(args: argparse.Namespace, ranks: int, parts: dict[str, dict[str, float]]) -> None:
    tensors, cores = len(model(args.model).tensors), len(os.sched_getaffinity(0))
    print(f"a step of {tensors} tensors, {ranks} ranks on {cores} cores, ms")
    print(f"  {'':26} {'measured':>9} {'bound':>9} {'copies alone':>13}")
    for label in parts["wall"]:
        of = {part: values[label] for part, values in parts.items()}
        each = (of["wall"], bound(of, ranks, cores), of["copy"] * max(1, ranks / cores))
        wall, least, copied = (f"{value * tensors / 1e3:.1f}" for value in each)
        print(f"  {label:26} {wall:>9} {least:>9} {copied:>13}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(2), nargs="+", action=Different, default=[4])
    parser.add_argument("--model", choices=NAMES, default="ctr")
    parser.add_argument("--tuning-steps", type=at_least(0), default=60, help="before measuring")
    report.add_arguments(parser, plot=False)
    args = parser.parse_args()
    found = report.Report("small_tensors", file=args.json)
    for ranks in args.ranks:
        with Conductor(CONTENDERS, ranks, time_out=600) as contest:
            training_step.tune(contest, 0 if args.quick else args.tuning_steps, args.model)
            parts = {part: measure(args, contest, part, found) for part in PARTS}
        print_bounds(args, ranks, parts)
    found.save(finished=True)


if __name__ == "__main__":
    with ending.by_exception():
        main()
