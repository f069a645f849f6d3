"""Small allreduces, from the call to the result: Perseus and its peers, in turns.

python benchmarks/latency.py [--ranks 2] [--sizes 4 1K 64K] [--distance far]
                             [--quick] [--json FILE] [--plot FILE]

An iteration counts as long as its slowest rank takes. Ratios are to Perseus through
`hvd.allreduce`. It also reports the CPU time that each contender uses while idle.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contest import charts, core_distance, ending, report
from contest.arguments import Different, at_least, float32_bytes
from contest.conductor import Conductor
from contest.launch import KNOWN, LIMITS
from contest.progress import progress

CONTENDERS = [label for label in KNOWN if label not in LIMITS]
SIZES = [4 << 2 * power for power in range(8)]
QUICK_SIZES = [4, 1024, 65536]


def cpu_text(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds / 1e4:.3f} %"


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draws a panel for each number of ranks."""
    charts.lines(
        charts.panels(content["rows"], "ranks"),
        file,
        charts.Words(
            "Allreduce of few bytes inside a host", "median time from the call to the result"
        ),
        x="bytes",
        scale=charts.DURATION,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(2), nargs="+", action=Different, default=[2])
    parser.add_argument(
        "--sizes", type=float32_bytes, nargs="+", action=Different, help="bytes; 4 .. 64K"
    )
    parser.add_argument(
        "--contenders", nargs="+", action=Different, choices=CONTENDERS, default=CONTENDERS
    )
    core_distance.add_argument(parser)
    report.add_arguments(parser)
    args = parser.parse_args()
    turns, seconds = (2, 0.1) if args.quick else (7, 0.4)
    latency = report.Report("latency", file=args.json)
    idle = latency.section("idle", cpu_text)
    print("allreduce, median, p10 .. p90, ratio to the first", flush=True)
    for ranks in args.ranks:
        with Conductor(args.contenders, ranks, distance=args.distance) as contest:
            sizes = args.sizes or (QUICK_SIZES if args.quick else SIZES)
            for size in progress(sizes, f"latency, {ranks} ranks"):
                case = {"bytes": size, "ranks": ranks}
                work = {"elements": size // 4, "in_place": 0}
                latency.add(
                    case,
                    contest.measure("collective.allreduce", turns=turns, seconds=seconds, **work),
                )
                latency.print_case(case)
                latency.save()
            case = {"work": "a core's time while idle", "ranks": ranks}
            idle.add(case, contest.measure("collective.idle", turns=turns, iterations=1))
            idle.print_case(case)
            idle.save()
    latency.save(finished=True)
    if args.plot:
        draw(latency.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
