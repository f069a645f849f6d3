"""Large collectives of Perseus and its peers, in turns, beside the limit of memory.

python benchmarks/bandwidth.py [--ranks 2 3 4] [--sizes 64K 1M 64M] [--works allreduce ...]
                               [--distance far] [--quick] [--json FILE] [--plot FILE]

Sizes are each rank's input, in float32. An iteration counts as long as its slowest rank takes. Two
limits are measured in all ranks at once: a copy of each rank's buffer, and the fastest of several
ways to read each buffer once and write it once (contest/contenders/limit.c). Ratios are to Perseus
through horovod.torch's interface.
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

WORKS = ["allreduce", "broadcast", "allgather", "alltoall", "reducescatter"]
SIZES = [64 << 10 + 2 * power for power in range(7)]
FEWER_SIZES = [1 << 20, 16 << 20, 64 << 20]  # for collectives that few models train with
QUICK_SIZES = [1 << 20, 64 << 20]
# More turns and pauses would take hours; latency.py measures the other contenders.
LEFT_OUT = ("perseus numpy", "horovod gloo, cycle 0")
CONTENDERS = [label for label in KNOWN if label not in LEFT_OUT]


def default_sizes(work: str, quick: bool) -> list[int]:
    if quick:
        return QUICK_SIZES
    return SIZES if work == "allreduce" else FEWER_SIZES


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draws the first collective at the fewest ranks, and in pictures beside `file`, such as
    bandwidth-allgather.svg, each collective at all numbers of ranks."""
    rows = charts.measured(content["rows"])
    scale = charts.Scale(rate_text, lambda row: row["bytes"] / row["median"] / 1e3)
    below = "what each rank gives, divided by the median time; higher is faster"
    first = charts.panels(rows, "work", "ranks")[:1]
    work = first[0].rows[0]["work"]
    ranks = first[0].rows[0]["ranks"]
    title = f"Bandwidth of {charts.case_text('work', work)} inside a host, {ranks} ranks"
    charts.lines(first, file, charts.Words(title, below), x="bytes", scale=scale)
    for work in dict.fromkeys(row["work"] for row in rows):
        of_work = [row for row in rows if row["work"] == work]
        charts.lines(
            charts.panels(of_work, "ranks"),
            file.with_stem(f"{file.stem}-{work}"),
            charts.Words(f"Bandwidth of {charts.case_text('work', work)} inside a host", below),
            x="bytes",
            scale=scale,
        )


def rate_text(rate: float) -> str:
    """Returns a rate in GB/s, as people write it."""
    if rate < 1:
        return f"{charts.three_digits(1000 * rate)} MB/s"
    return f"{charts.three_digits(rate)} GB/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(2), nargs="+", action=Different, default=[2, 3, 4])
    parser.add_argument(
        "--sizes",
        type=float32_bytes,
        nargs="+",
        action=Different,
        help="allreduce: 64K .. 256M, the others: 1M .. 64M",
    )
    parser.add_argument("--works", nargs="+", action=Different, choices=WORKS, default=WORKS)
    parser.add_argument(
        "--contenders", nargs="+", action=Different, choices=list(KNOWN), default=CONTENDERS
    )
    core_distance.add_argument(parser)
    report.add_arguments(parser)
    args = parser.parse_args()
    shared_out = {"alltoall", "reducescatter"} & set(args.works)
    if shared_out and min(args.sizes or SIZES) < 4 * max(args.ranks):
        parser.error(f"argument --sizes: {min(shared_out)} needs 4 bytes for each rank")
    if set(args.contenders) <= set(LIMITS) and args.works != ["allreduce"]:
        parser.error("argument --contenders: the limits are known of allreduce only")
    turns, seconds = (2, 0.1) if args.quick else (5, 0.6)
    bandwidth = report.Report("bandwidth", file=args.json)
    print("median, p10 .. p90, ratio to the first", flush=True)
    for ranks in args.ranks:
        cases = [
            {"work": work, "bytes": size, "ranks": ranks}
            for work in args.works
            for size in args.sizes or default_sizes(work, args.quick)
        ]
        with Conductor(args.contenders, ranks, distance=args.distance) as contest:
            for case in progress(cases, f"bandwidth, {ranks} ranks"):
                # Only for an allreduce is the least amount of reading and writing known.
                only = [
                    label
                    for label in args.contenders
                    if case["work"] == "allreduce" or label not in LIMITS
                ]
                times = contest.measure(
                    f"collective.{case['work']}",
                    turns=turns,
                    seconds=seconds,
                    only=only,
                    elements=case["bytes"] // 4,
                )
                bandwidth.add(case, times)
                bandwidth.print_case(case)
                bandwidth.save()
    bandwidth.save(finished=True)
    if args.plot:
        draw(bandwidth.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
