"""Every schedule of torch.distributed.pipelining over Perseus and over Gloo, many times, in turns.

python benchmarks/torch_pipelining.py [--runs 200] [--places 2 4 2x2 hosts] [--schedules GPipe ...]
                                      [--limit 30] [--quick] [--json FILE]

A run is a step; losses and gradients are compared with those of the unsplit model. A turn makes
stages and a schedule anew, and has 10 runs, of which the first agrees on shapes. There are as many
micro-batches as stages, the fewest that every schedule takes. Stages compute little: what takes
time is messages, of 2 KiB, and the interpreter.

Places are 2 and 4 ranks on one host, which form one pipeline; 2x2, two pipelines of two ranks on
one host, with stages in shards (FSDP2); hosts, four ranks in one pipeline, and hosts-2x2, two
pipelines of two, each rank on a host of its own. Hosts are network namespaces (contest/lab.py), for
which one must be root.

A turn that has not ended within --limit seconds has hung: its ranks are killed and started anew. A
table shows how many turns hung, gave other results than the unsplit model, or failed; the median of
the runs; and Gloo's median divided by that of Perseus.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from contest import ending, report
from contest.arguments import Different, at_least, positive
from contest.conductor import percentile
from contest.lab import open_lab, why_not
from contest.launch import Contender, Host
from contest.repeats import Outcome, Repeats

CONTENDERS = (
    Contender("perseus", "ranks", "torch_perseus"),
    Contender("torch gloo", "ranks", "torch_gloo"),
)
FIRST = CONTENDERS[0].label
SCHEDULES = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)
#: Ranks, pipelines, hosts.
PLACES = {
    "2": (2, 1, 1),
    "4": (4, 1, 1),
    "2x2": (4, 2, 1),
    "hosts": (4, 1, 4),
    "hosts-2x2": (4, 2, 4),
}
RUNS_OF_A_TURN = 10


@contextmanager
def hosts_of(count: int) -> Iterator[list[Host]]:
    if count == 1:
        yield [Host()]
        return
    with open_lab(count) as lab:
        yield [Host(lab.address(host), "eth0", tuple(lab.at(host))) for host in range(count)]


def row(case: dict[str, Any], label: str, outcome: Outcome, first: float | None) -> dict[str, Any]:
    """Returns the row of a contender; `first` is the median of the first one."""
    median = statistics.median(outcome.microseconds) if outcome.microseconds else None
    return {
        **case,
        "contender": label,
        "runs": outcome.runs,
        "hangs": outcome.hangs,
        "wrong": outcome.wrong,
        "failed": outcome.failed,
        "reason": outcome.last_words,
        "median": median,
        "p10": percentile(outcome.microseconds, 10) if median else None,
        "p90": percentile(outcome.microseconds, 90) if median else None,
        "ratio": median / first if median and first else None,
    }


def print_row(of: dict[str, Any]) -> None:
    counts = (
        f"{of['runs']:5} runs  {of['hangs']:3} hung  {of['wrong']:3} wrong  {of['failed']:3} failed"
    )
    ratio = f"{of['ratio']:5.2f}x" if of["ratio"] else ""
    median = report.time_text(of["median"])
    print(
        f"  {of['schedule']:22} {of['contender']:11} {counts} {median:>11} {ratio}  {of['reason']}"
    )


def measure(place: str, args: argparse.Namespace, found: report.Report) -> None:
    ranks, replicas, hosts = PLACES[place]
    runs = min(args.runs, RUNS_OF_A_TURN) if args.quick else args.runs
    print(f"{place}: {ranks} ranks, {replicas} pipelines, {hosts} hosts", flush=True)
    with hosts_of(hosts) as at, Repeats(CONTENDERS, ranks, at, args.limit) as repeats:
        for schedule in args.schedules:
            outcomes = repeats.measure(
                "torch_pipelining.run",
                runs,
                RUNS_OF_A_TURN,
                schedule=schedule,
                replicas=replicas,
            )
            case = {"place": place, "ranks": ranks, "hosts": hosts, "schedule": schedule}
            first = outcomes[FIRST].microseconds
            for label, outcome in outcomes.items():
                median = statistics.median(first) if first else None
                found.rows.append(row(case, label, outcome, median))
                print_row(found.rows[-1])
            sys.stdout.flush()
            found.save()


def summary(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for place in dict.fromkeys(each["place"] for each in rows):
        for label in (contender.label for contender in CONTENDERS):
            mine = [one for one in rows if one["place"] == place and one["contender"] == label]
            counts = ", ".join(
                f"{sum(one[key] for one in mine)} {key}"
                for key in ("runs", "hangs", "wrong", "failed")
            )
            ratios = [one["ratio"] for one in mine if one["ratio"]]
            spread = ""
            if ratios and label != FIRST:
                spread = f"; {min(ratios):.2f} to {max(ratios):.2f} times as long as over Perseus"
            lines.append(f"{place:10} {label:11} {counts}{spread}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--runs", type=at_least(1), default=20, help="of each schedule")
    parser.add_argument(
        "--places", nargs="+", action=Different, choices=list(PLACES), default=list(PLACES)
    )
    parser.add_argument(
        "--schedules", nargs="+", action=Different, choices=SCHEDULES, default=list(SCHEDULES)
    )
    parser.add_argument("--limit", type=positive, default=30.0, help="seconds for a turn")
    report.add_arguments(parser, plot=False)
    args = parser.parse_args()
    if any(PLACES[place][2] > 1 for place in args.places) and (reason := why_not()):
        print(f"no hosts: {reason}", file=sys.stderr, flush=True)
        args.places = [place for place in args.places if PLACES[place][2] == 1]
    # Contenders are stopped during others' turns, and time jumps when they continue.
    os.environ.setdefault("PERSEUS_START_TIMEOUT", "3600")
    found = report.Report("torch_pipelining", file=args.json)
    for place in args.places:
        measure(place, args, found)
    found.save(finished=True)
    print("\n".join(summary(found.rows)))


if __name__ == "__main__":
    with ending.by_exception():
        main()
