"""Single calls from C: Perseus, and those of Open MPI and MPICH, in turns.

python benchmarks/calls.py [--ranks 2] [--sizes 4 4K] [--calls 1 64] [--distance far]
                           [--contenders "open mpi C"] [--quick] [--json FILE] [--plot FILE]

It answers four questions: how long a call takes that returns when the allreduce is done, by
perseus_run or MPI_Allreduce (`in one`); how long a call keeps its caller that only begins it, by
perseus_submit or MPI_Iallreduce (`handed over`); how long it then takes from the call until it is
done (`done`); and the same for 64 that are under way at once, until the last is done. An iteration
counts as long as its slowest rank takes. Ratios are to Perseus, waiting.

`waiting`: the caller waits for each call and releases it, as MPI's callers do; it has no callbacks.
`called back`: the caller sleeps, or could do something else, and the library's thread runs the
callback. MPI's calls progress only while the caller is inside MPI; here it stays there until all
are done.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contest import charts, core_distance, ending, report
from contest.arguments import Different, at_least, float32_bytes
from contest.conductor import Conductor
from contest.launch import KNOWN, variant
from contest.progress import progress

CALLED_BACK = "perseus C, called back"
CONTENDERS = (
    variant("perseus C", "perseus C, waiting", CONTENDER_WAITS="1"),
    variant("perseus C", CALLED_BACK),
    KNOWN["open mpi C"],
    KNOWN["mpich C"],
)
SIZES = [4, 1 << 10, 16 << 10, 256 << 10]
QUICK_SIZES = [4, 4 << 10]
AT_ONCE = (1, 64)
#: To hand over a larger buffer takes no longer, but its end takes longer to come.
HANDED_OVER_BYTES = 256 << 10
IN_ONE = ("one call in one", "collective.allreduce", 1)
#: The measured intervals, each with the number of concurrent calls.
WORKS = (
    IN_ONE,
    ("one call until it is handed over", "calls.handed_over", 1),
    ("one call until it is done", "calls.done", 1),
    ("64 calls until all are handed over", "calls.handed_over", 64),
    ("64 calls until all are done", "calls.done", 64),
)


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draws a panel for each interval, and number of ranks if there are several."""
    charts.lines(
        charts.panels(content["rows"], "work", "ranks"),
        file,
        charts.Words("Single allreduces, called from C", "median time for each size of a call"),
        x="bytes",
        scale=charts.DURATION,
        columns=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(1), nargs="+", action=Different, default=[2])
    parser.add_argument(
        "--sizes", type=float32_bytes, nargs="+", action=Different, help="bytes of each"
    )
    parser.add_argument(
        "--calls", type=int, nargs="+", action=Different, choices=AT_ONCE, default=AT_ONCE
    )
    labels = [contender.label for contender in CONTENDERS]
    parser.add_argument("--contenders", nargs="+", action=Different, choices=labels, default=labels)
    core_distance.add_argument(parser)
    report.add_arguments(parser)
    args = parser.parse_args()
    turns, seconds = (2, 0.1) if args.quick else (7, 0.3)
    calls = report.Report("calls", file=args.json)
    for ranks in args.ranks:
        chosen = [contender for contender in CONTENDERS if contender.label in args.contenders]
        with Conductor(chosen, ranks, distance=args.distance) as contest:
            cases = [
                (size, work)
                for size in args.sizes or (QUICK_SIZES if args.quick else SIZES)
                for work in WORKS
                if work[2] in args.calls
                if size <= HANDED_OVER_BYTES or "handed_over" not in work[1]
            ]
            for size, (what, work, count) in progress(cases, f"calls, {ranks} ranks"):
                case = {"work": what, "bytes": size, "ranks": ranks}
                options = {"elements": size // 4}
                is_in_one = (what, work, count) == IN_ONE
                options |= {"in_place": 0} if is_in_one else {"calls": count}
                labels = [
                    contender.label
                    for contender in chosen
                    if not (is_in_one and contender.label == CALLED_BACK)
                ]
                calls.add(
                    case,
                    contest.measure(work, turns=turns, seconds=seconds, only=labels, **options),
                )
                calls.print_case(case)
                calls.save()
    calls.save(finished=True)
    if args.plot:
        draw(calls.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
