"""The first calls of a job, and those after tuning: an allreduce from C, in new jobs by turns.

python benchmarks/first_calls.py [--ranks 2] [--size 64M] [--jobs 7] [--distance far]
                                 [--quick] [--json FILE]

A job's first call of a size makes and maps shared memory and agrees on a name, and in its first 50
steps the tuner tries other settings. Each job is new. It times its first 10 calls one by one, and
10 more after the tuner's last trial. A call counts as long as its slowest rank takes. Ratios are to
the same call in jobs without the tuner.
"""

from __future__ import annotations

import argparse

from contest import core_distance, ending, report
from contest.arguments import at_least, float32_bytes
from contest.conductor import Conductor, Times
from contest.launch import variant
from contest.progress import progress

CONTENDERS = (
    variant("perseus C", "not tuned", PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING="1"),
    variant("perseus C", "tuned"),
)
FIRST = 10
#: More calls than the tuner takes.
TUNING_CALLS = 70
#: What is printed, each with the indices of its calls among all that a job times.
ROWS = (
    *((f"call {index + 1} of a job", range(index, index + 1)) for index in range(FIRST)),
    (f"a call of the first {FIRST}", range(FIRST)),
    ("a call after tuning", range(FIRST, 2 * FIRST)),
)


def time_job(ranks: int, size: int, distance: str | None) -> dict[str, Times]:
    """Returns what a new job of each contender has timed: the first calls, then the tuned ones."""
    work = {"elements": size // 4, "turns": 1}
    with Conductor(CONTENDERS, ranks, distance=distance) as contest:
        times = contest.measure(
            "collective.allreduce", iterations=FIRST, from_first=1, once_more=False, **work
        )
        contest.measure("collective.allreduce", iterations=TUNING_CALLS, **work)
        later = contest.measure("collective.allreduce", iterations=FIRST, **work)
    for label, of_job in times.items():
        of_job.microseconds += later[label].microseconds
        of_job.reason = of_job.reason or later[label].reason
    return times


def chosen(jobs: list[dict[str, Times]], label: str, calls: range) -> Times:
    """Returns these calls of all jobs."""
    of_jobs = [job[label] for job in jobs]
    reasons = [one.reason for one in of_jobs if one.reason is not None]
    microseconds = [one.microseconds[call] for one in of_jobs if not one.reason for call in calls]
    return Times(microseconds, reasons[0] if reasons else None, "", of_jobs[-1].core_distances)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(2), default=2)
    parser.add_argument("--size", type=float32_bytes, default=64 << 20, help="bytes")
    parser.add_argument("--jobs", type=at_least(1), help="how many jobs of each")
    core_distance.add_argument(parser)
    report.add_arguments(parser, plot=False)
    args = parser.parse_args()
    count = args.jobs or (2 if args.quick else 7)
    first_calls = report.Report("first_calls", file=args.json)
    jobs = [
        time_job(args.ranks, args.size, args.distance)
        for _ in progress(range(count), f"jobs, {args.ranks} ranks")
    ]
    print("median, p10 .. p90, ratio to the first", flush=True)
    for what, calls in ROWS:
        case = {"work": f"allreduce, {what}", "bytes": args.size, "ranks": args.ranks}
        times = {one.label: chosen(jobs, one.label, calls) for one in CONTENDERS}
        first_calls.add(case, times)
        first_calls.print_case(case)
    first_calls.save(finished=True)


if __name__ == "__main__":
    with ending.by_exception():
        main()
