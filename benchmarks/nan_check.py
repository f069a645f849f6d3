"""The cost of looking for NaN (PERSEUS_ALLREDUCE_NANCHECK).

python benchmarks/nan_check.py [--ranks 2] [--quick] [--json FILE]

1. Packing tensors into fusion buffers and unpacking them, with and without the check, in turns
   (benchmarks/nan_check/): the tensors are in memory, a buffer is in the cache.
2. All gradients of models at once, and an allreduce of 64 MiB, which is reduced in place. There is
   nothing to pack, so the search is a separate pass, in the cache where possible.
"""

from __future__ import annotations

import argparse
import json
import subprocess

from contest import built, ending, report, training_step
from contest.arguments import Different, at_least
from contest.conductor import Conductor, Times
from contest.launch import variant

BASE = "perseus numpy"
#: 16 KiB to 64 KiB each, 128 MiB to 512 MiB in all, in buffers of half a MiB.
PACKED = {"elements": 8192, "tensors": 8192, "buffer": 512 << 10}
WORKS = {
    "all gradients of resnet50": ("step.gradients", {"name": "resnet50"}),
    "all gradients of bert-base": ("step.gradients", {"name": "bert-base"}),
    "all gradients of ctr": ("step.gradients", {"name": "ctr"}),
    "allreduce of 64 MiB": ("collective.allreduce", {"elements": 16 << 20}),
}


def measure_packing(turns: int, found: report.Report) -> None:
    command = [built.program("nan_check_pack"), *map(str, [*PACKED.values(), turns])]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    for line in map(json.loads, result.stdout.splitlines()):
        case = {"work": f"{line['direction']} of {line['dtype']}", "ranks": 1}
        plain, checked = ([t / 1e3 for t in line[key]] for key in ("plain", "checked"))
        found.add(case, {"off": Times(plain), "checked": Times(checked)})
        found.print_case(case)
    found.save()


def measure_works(args: argparse.Namespace, ranks: int, found: report.Report) -> None:
    turns, iterations = (1, 5) if args.quick else (15, 10)
    modes = [
        variant(BASE, mode, PERSEUS_ALLREDUCE_NANCHECK=mode) for mode in ("off", "warn", "zero")
    ]
    with Conductor(modes, ranks) as contest:
        training_step.tune(contest, 0 if args.quick else 60)
        for text, (work, options) in WORKS.items():
            case = {"work": text, "ranks": ranks}
            found.add(case, contest.measure(work, turns=turns, iterations=iterations, **options))
            found.print_case(case)
            found.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(1), nargs="+", action=Different, default=[2, 4])
    report.add_arguments(parser, plot=False)
    args = parser.parse_args()
    found = report.Report("nan_check", file=args.json)
    measure_packing(5 if args.quick else 31, found)
    for ranks in args.ranks:
        measure_works(args, ranks, found)
    found.save(finished=True)


if __name__ == "__main__":
    with ending.by_exception():
        main()
