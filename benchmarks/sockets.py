"""Ranks under several last-level caches: simulates the two forms of an allreduce inside a host.

.venv/bin/python benchmarks/sockets.py [--caches 2] [--ranks 8] [--sizes 4 64M] [--recorded fast]
                                       [--costs NAME=NUMBER] [--check] [--quick] [--json FILE]

`flat`: the ranks go about it as if all were equally far apart. `grouped`: those under one cache
reduce first among themselves, then with those under other caches. The simulator
(contest/sockets.py) replays the schedules of both with costs that were recorded on machines of 2
processors, since none with several caches is at hand: on an older one, where reading from afar was
slow, and on a newer one, where it is fast. `if near`: the same where all ranks are in truth near
each other. An allreduce also takes what every call costs, which the figures leave out.

--check measures allreduces from C at 2 ranks on this machine, beside what the simulator says of
them with the costs of `fast`. The exit status is 1 if the fastest tenth of the calls is not within
a factor of 1.5 of it. (Other work on the machine delays the rest. Four ranks on two processors also
wait for each other's turns, which the simulator knows nothing of.)
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
#: Inputs of up to so many bytes on all ranks together travel with the agreement. For larger ones
#: ranks agree first, which takes another message each way.
AGREED_WITH_INPUT = 4096


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
    """Measures what the simulator can be held against; returns a row for each size."""
    waiting = variant("perseus C", "flat", CONTENDER_WAITS="1")
    rows = []
    with Conductor([waiting], 2) as contest:
        for size in progress(sizes, "allreduces, 2 ranks"):
            times = contest.measure(
                "calls.done",
                turns=3 if quick else 9,
                seconds=0.1 if quick else 0.3,
                elements=size // 4,
                calls=1,
            )
            measured.add({"work": "allreduce", "bytes": size, "ranks": 2}, times)
            rows.append(_compared(costs, size, times["flat"]))
    return rows


def _compared(costs: Costs, size: int, times: Times) -> dict:
    distances = [distance for distance in times.core_distances if distance is not None]
    # The fastest tenth is of the near state if there was any of it.
    is_far = all(core_distance.state_of(distance) == "far" for distance in distances)
    cache_of = [0, 1 if is_far else 0]
    took, _ = simulate(costs, cache_of, size, "flat")
    if size > AGREED_WITH_INPUT // 2:
        took += simulate(costs, cache_of, 4, "flat")[0]
    expected = (costs.call + took) / 1e3
    tenth = times.percentile(10)
    return {
        "bytes": size,
        "distance": "far" if is_far else "near",
        "measured_us": tenth,
        "simulated_us": expected,
        "factor": None if tenth is None else expected / tenth,
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
        print("    bytes  processors    measured   simulated  factor")
        for row in also["checks"]:
            print(
                f"{report.bytes_text(row['bytes']):>9}  {row['distance']:10} "
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
