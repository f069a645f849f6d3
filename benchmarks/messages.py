"""Messages between two ranks, there and back: Perseus, Open MPI and MPICH, in turns.

python benchmarks/messages.py [--sizes 4 1K 64M] [--distance far] [--quick] [--json FILE]
                              [--plot FILE]

Rank 0 sends to rank 1, which sends the same back: a time is that of both ways, and half of it that
of one. `perseus C, waiting` waits for each message by perseus_wait, as MPI's callers do. The copy
limit is two copies by one processor. Ratios are to Perseus.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contest import charts, core_distance, ending, report
from contest.arguments import Different, float32_bytes
from contest.conductor import Conductor
from contest.launch import variant
from contest.progress import progress

CONTENDERS = [
    variant("perseus C", "perseus C, waiting", CONTENDER_WAITS="1"),
    "open mpi C",
    "mpich C",
    "copy limit",
]
SIZES = [4 << 2 * power for power in range(13)]
QUICK_SIZES = [4, 4096, 65536, 1 << 20, 64 << 20]


def draw(content: Mapping[str, Any], file: Path) -> None:
    charts.lines(
        charts.panels(content["rows"], "ranks"),
        file,
        charts.Words("A message there and back, inside a host", "median time of both ways"),
        x="bytes",
        scale=charts.DURATION,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--sizes", type=float32_bytes, nargs="+", action=Different, help="bytes; 4 .. 64M"
    )
    core_distance.add_argument(parser)
    report.add_arguments(parser)
    args = parser.parse_args()
    turns, seconds = (3, 0.1) if args.quick else (7, 0.4)
    messages = report.Report("messages", file=args.json)
    print("a message there and back, median, p10 .. p90, ratio to the first", flush=True)
    with Conductor(CONTENDERS, 2, distance=args.distance) as contest:
        for size in progress(args.sizes or (QUICK_SIZES if args.quick else SIZES), "messages"):
            case = {"bytes": size, "ranks": 2}
            work = {"elements": size // 4}
            found = contest.measure("messages.pingpong", turns=turns, seconds=seconds, **work)
            messages.add(case, found)
            messages.print_case(case)
            messages.save()
    messages.save(finished=True)
    if args.plot:
        draw(messages.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
