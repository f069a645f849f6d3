"""Ranks under several last-level caches: simulates the two forms of an allreduce inside a host.

.venv/bin/python benchmarks/sockets.py [--caches 2] [--ranks 8] [--sizes 4 64M] [--recorded fast]
                                       [--costs NAME=NUMBER] [--check] [--quick] [--json FILE]

`flat`: the ranks go about it as if all were equally far apart. `grouped`: those under one cache
reduce first among themselves, then with those under other caches. The simulator
(contest/sockets.py) replays the schedules of both with costs that were recorded on machines of 2
processors, since none with several caches is at hand: on an older one, where reading from afar was
slow, and on a newer one, where it is fast. `if near`: the same where all ranks are in truth near
each other. An allreduce also takes what every call costs, which the figures leave out.

--check measures allreduces from C on this machine, beside what the simulator says of them: flat at
2 ranks, and both forms at 4 ranks on 2 processors, where PERSEUS_CACHE_GROUPS imposes groups. The
exit status is 1 if one of the times is not within a factor of 1.5 of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from contest import core_distance, ending, report
from contest.arguments import Different, at_least, float32_bytes, setting
from contest.conductor import Conductor, Times
from contest.launch import variant
from contest.progress import progress
from contest.sockets import RECORDED, Costs, simulate

SIZES = [4, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
CHECKED = [4, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
TOLERANCE = 1.5
#: The contenders of a check, by the number of ranks: caches of the ranks, and form.
CHECKS = {2: {"flat": (0, 0)}, 4: {"flat": (0, 0, 0, 0), "grouped": (0, 0, 1, 1)}}


def near(costs: Costs) -> Costs:
    """Returns the costs where all ranks are near each other."""
    return dataclasses.replace(costs, far_line=costs.near_line, far_read_line=0.0, link=0.0)


def simulated(costs: Costs, caches: int, ranks: int, sizes: list[int]) -> list[dict]:
    """Returns a row for each size."""
    cache_of = [cache for cache in range(caches) for _ in range(ranks)]
    rows = []
    for size in sizes:
        flat, flat_lines = simulate(costs, cache_of, size, "flat")
        grouped, grouped_lines = simulate(costs, cache_of, size, "grouped")
        if_near, _ = simulate(near(costs), cache_of, size, "flat")
        if_near /= simulate(near(costs), cache_of, size, "grouped")[0]
        rows.append(
            {
                "bytes": size,
                "caches": caches,
                "ranks_under_each": ranks,
                "flat_us": flat / 1e3,
                "grouped_us": grouped / 1e3,
                "ratio": flat / grouped,
                "ratio_if_near": if_near,
                "far_lines_flat": flat_lines,
                "far_lines_grouped": grouped_lines,
            }
        )
    return rows


def print_simulated(rows: list[dict]) -> None:
    print("   bytes        flat     grouped  flat / grouped  if near  far lines a rank reads")
    for row in rows:
        print(
            f"{report.bytes_text(row['bytes']):>8} {report.time_text(row['flat_us']):>11} "
            f"{report.time_text(row['grouped_us']):>11} {row['ratio']:15.2f} "
            f"{row['ratio_if_near']:8.2f}  {row['far_lines_flat']}, {row['far_lines_grouped']}"
        )


def check(costs: Costs, sizes: list[int], measured: report.Report, quick: bool) -> list[dict]:
    """Measures what the simulator can be held against; returns a row for each median."""
    rows = []
    for ranks, forms in CHECKS.items():
        contenders = [
            variant(
                "perseus C",
                form,
                CONTENDER_WAITS="1",
                PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING="1",
                **({"PERSEUS_CACHE_GROUPS": ",".join(map(str, caches))} if any(caches) else {}),
            )
            for form, caches in forms.items()
        ]
        with Conductor(contenders, ranks) as contest:
            for size in progress(sizes, f"allreduces, {ranks} ranks"):
                times = contest.measure(
                    "calls.done",
                    turns=3 if quick else 9,
                    seconds=0.1 if quick else 0.3,
                    elements=size // 4,
                    calls=1,
                )
                measured.add({"work": "allreduce", "bytes": size, "ranks": ranks}, times)
                for form in forms:
                    rows.append(_compared(costs, ranks, form, size, times[form]))
    return rows


def _compared(costs: Costs, ranks: int, form: str, size: int, times: Times) -> dict:
    # The ranks of this machine are all as far apart as its two processors are.
    distances = [distance for distance in times.core_distances if distance is not None]
    is_far = any(core_distance.state_of(distance) == "far" for distance in distances)
    cache_of = range(ranks) if is_far and form == "flat" else CHECKS[ranks][form]
    if not is_far:
        costs = near(costs)
    took, _ = simulate(costs, cache_of, size, form, processors=2)
    expected = (costs.call * ranks / 2 + took) / 1e3
    return {
        "ranks": ranks,
        "form": form,
        "bytes": size,
        "measured_us": times.median,
        "simulated_us": expected,
        "factor": None if times.median is None else expected / times.median,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--caches", type=at_least(2), default=2)
    parser.add_argument("--ranks", type=at_least(2), default=8, help="under each cache")
    parser.add_argument("--sizes", type=float32_bytes, nargs="+", action=Different)
    parser.add_argument(
        "--recorded", choices=[*RECORDED], nargs="+", action=Different, default=[*RECORDED]
    )
    costs_types = {field.name: float for field in dataclasses.fields(Costs)}
    parser.add_argument(
        "--costs", type=setting(costs_types), nargs="+", default=[], metavar="NAME=NUMBER"
    )
    parser.add_argument("--check", action="store_true", help="hold it against this machine")
    report.add_arguments(parser, plot=False)
    args = parser.parse_args()
    given = {name: float(value) for name, _, value in (cost.partition("=") for cost in args.costs)}
    recorded = {name: dataclasses.replace(RECORDED[name], **given) for name in args.recorded}
    also: dict[str, Any] = {name: dataclasses.asdict(costs) for name, costs in recorded.items()}
    figures = report.Report("sockets", file=args.json, also=also)
    status = 0
    if args.check:
        also["checks"] = check(recorded["fast"], args.sizes or CHECKED, figures, args.quick)
        print("ranks  form         bytes    measured   simulated  factor")
        for row in also["checks"]:
            print(
                f"{row['ranks']:5}  {row['form']:8} {report.bytes_text(row['bytes']):>9} "
                f"{report.time_text(row['measured_us']):>11} "
                f"{report.time_text(row['simulated_us']):>11}  {row['factor'] or 0:.2f}"
            )
        is_right = [1 / TOLERANCE <= (row["factor"] or 0) <= TOLERANCE for row in also["checks"]]
        status = 0 if all(is_right) else 1
    else:
        also["simulated"] = {}
        for name, costs in recorded.items():
            rows = simulated(costs, args.caches, args.ranks, args.sizes or SIZES)
            also["simulated"][name] = rows
            print(f"{args.caches} caches with {args.ranks} ranks each, reading from afar is {name}")
            print_simulated(rows)
    figures.save(finished=True)
    return status


if __name__ == "__main__":
    with ending.by_exception():
        sys.exit(main())
