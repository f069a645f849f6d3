"""hvd.allreduce with the engines' threads bound to processors, and not bound, in turns.

python benchmarks/affinity.py [--ranks 2] [--sizes 4 64M] [--busy 1] [--distance far]
                              [--quick] [--json FILE]

`auto` and `not bound` are the two values of PERSEUS_THREAD_AFFINITY. With --busy, so many other
processes compute all the time. An iteration counts as long as its slowest rank takes. Ratios are to
`auto`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from contest import core_distance, ending, report
from contest.arguments import Different, at_least, float32_bytes
from contest.conductor import Conductor
from contest.launch import variant
from contest.progress import progress

CONTENDERS = (
    variant("perseus", "auto", PERSEUS_THREAD_AFFINITY="auto"),
    variant("perseus", "not bound", PERSEUS_THREAD_AFFINITY="none"),
)
SIZES = [4, 1 << 20, 16 << 20, 64 << 20]


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Lets so many processes compute meanwhile."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=ending.with_parent)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        with ending.held_back():
            for process in started:
                process.kill()
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(2), nargs="+", action=Different, default=[2])
    parser.add_argument("--sizes", type=float32_bytes, nargs="+", action=Different, help="bytes")
    parser.add_argument("--busy", type=at_least(0), default=0, help="other processes that compute")
    core_distance.add_argument(parser)
    report.add_arguments(parser, plot=False)
    args = parser.parse_args()
    turns, seconds = (4, 0.1) if args.quick else (9, 0.4)
    affinity = report.Report("affinity", file=args.json, also={"busy": args.busy})
    print("median, p10 .. p90, ratio to the first", flush=True)
    for ranks in args.ranks:
        with Conductor(CONTENDERS, ranks, distance=args.distance) as contest, busy(args.busy):
            for size in progress(args.sizes or SIZES, f"affinity, {ranks} ranks"):
                case = {"work": "hvd.allreduce", "bytes": size, "ranks": ranks}
                work = {"elements": size // 4, "in_place": 0}
                times = contest.measure(
                    "collective.allreduce", turns=turns, seconds=seconds, **work
                )
                affinity.add(case, times)
                affinity.print_case(case)
                affinity.save()
    affinity.save(finished=True)


if __name__ == "__main__":
    with ending.by_exception():
        main()
