"""torch.distributed over Perseus and over Gloo, in turns, on one host and over several.

python benchmarks/c10d.py [--ranks 2 4] [--hosts 4] [--link 1000] [--flow 250] [--works ddp ...]
                          [--sizes 4 64K 64M] [--quick] [--json FILE] [--plot FILE]

Sizes are those of each rank's input, in float32; of allgather, of its output. sendrecv passes them
round a ring. ddp, fsdp2 and tensor_parallel are whole training steps of a model with 33 MB of
parameters (contest/works/torch_step.py).

An iteration counts as long as its slowest rank takes. Ratios are to Perseus, so Gloo's says how
many times longer it takes. The last lines give the least of them, for few bytes and from 1 MiB on.

--hosts is how many hosts there are, with a rank on each, and 0 leaves them out. They are network
namespaces (contest/lab.py), for which one must be root. --link and --flow are the Mbit/s that a
host, and each of its connections, may send.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contest import charts, ending, report
from contest.arguments import Different, at_least, float32_bytes
from contest.conductor import Conductor
from contest.lab import open_lab, why_not
from contest.launch import Contender, Host
from contest.progress import progress

CONTENDERS = (
    Contender("perseus", "ranks", "torch_perseus"),
    Contender("torch gloo", "ranks", "torch_gloo"),
)
SIZED = {
    "allreduce": "collective.allreduce",
    "reducescatter": "collective.reducescatter",
    "allgather": "collective.allgather",
    "alltoall": "collective.alltoall",
    "broadcast": "collective.broadcast",
    "sendrecv": "collective.sendrecv",
}
UNSIZED = {
    "barrier": "collective.barrier",
    "ddp": "torch_step.ddp",
    "fsdp2": "torch_step.fsdp2",
    "tensor_parallel": "torch_step.tensor_parallel",
}
WORKS = [*SIZED, *UNSIZED]
SIZES = [4, 64, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
QUICK_SIZES = [4, 64 << 10, 1 << 20, 64 << 20]
LARGE = 1 << 20


def cases_of(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    sizes = args.sizes or (QUICK_SIZES if args.quick else SIZES)
    for work in args.works:
        if work in SIZED:
            yield from ({"work": work, "bytes": size} for size in sizes)
        else:
            yield {"work": work}


def options_of(case: Mapping[str, Any], ranks: int) -> dict[str, int]:
    """Returns the number of elements of each rank's input, of which each rank gets at least one."""
    if case["work"] not in SIZED:
        return {}
    elements = max(case["bytes"] // 4, ranks)
    return {"elements": elements // ranks if case["work"] == "allgather" else elements}


@contextmanager
def on_one_host(ranks: int) -> Iterator[Conductor]:
    with Conductor(CONTENDERS, ranks) as contest:
        yield contest


@contextmanager
def over_hosts(args: argparse.Namespace) -> Iterator[Conductor]:
    with open_lab(args.hosts, args.link, args.flow) as lab:
        hosts = [Host(lab.address(host), "eth0", tuple(lab.at(host))) for host in range(lab.hosts)]
        with Conductor(CONTENDERS, args.hosts, hosts, time_out=180) as contest:
            if not args.quick:
                # Perseus finds its settings in the first steps, which are not measured.
                contest.measure(
                    SIZED["allreduce"], turns=1, iterations=50, only=["perseus"], elements=4 << 20
                )
            yield contest


def measure(
    contest: Conductor, place: Mapping[str, Any], args: argparse.Namespace, found: report.Report
) -> None:
    turns, seconds = (2, 0.1) if args.quick else (7, 0.5)
    for case in progress(list(cases_of(args)), ", ".join(f"{v} {k}" for k, v in place.items())):
        work = case["work"]
        times = contest.measure(
            {**SIZED, **UNSIZED}[work],
            turns=turns,
            seconds=seconds,
            **options_of(case, place["ranks"]),
        )
        whole = {**case, **place}
        found.add(whole, times)
        found.print_case(whole)
        found.save()


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns lines: how many times longer Gloo takes than Perseus, at least, for each work."""
    lines = ["Gloo's time divided by that of Perseus, at least:"]
    gloos = [row for row in rows if row["contender"] == "torch gloo" and row["ratio"]]
    for place in dict.fromkeys((row["hosts"], row["ranks"]) for row in gloos):
        here = [row for row in gloos if (row["hosts"], row["ranks"]) == place]
        lines.append(f"  {place[1]} ranks on {place[0]} host{'s' if place[0] > 1 else ''}")
        for work in dict.fromkeys(row["work"] for row in here):
            of_work = [row for row in here if row["work"] == work]
            parts = []
            for words, part in (
                ("below 1 MiB", [row for row in of_work if row.get("bytes", LARGE) < LARGE]),
                ("from 1 MiB on", [row for row in of_work if row.get("bytes", 0) >= LARGE]),
                ("a step", [row for row in of_work if "bytes" not in row]),
            ):
                if part:
                    parts.append(f"{words} {min(row['ratio'] for row in part):5.2f}")
            lines.append(f"    {work:16} {', '.join(parts)}")
    return lines


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draws the collectives, at the most ranks on the fewest hosts."""
    rows = [row for row in content["rows"] if "bytes" in row]
    hosts = min((row["hosts"] for row in rows), default=1)
    most = max((row["ranks"] for row in rows if row["hosts"] == hosts), default=0)
    place = "inside a host" if hosts == 1 else f"over {hosts} hosts"
    charts.lines(
        charts.panels(
            [row for row in rows if (row["hosts"], row["ranks"]) == (hosts, most)], "work"
        ),
        file,
        charts.Words(
            f"torch.distributed {place}, {most} ranks", "median time from the call to the end"
        ),
        x="bytes",
        scale=charts.DURATION,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--ranks", type=at_least(2), nargs="*", action=Different, default=[2, 4])
    parser.add_argument("--hosts", type=at_least(0), default=4, help="with one rank each")
    parser.add_argument("--link", type=at_least(1), default=1000, help="Mbit/s")
    parser.add_argument("--flow", type=at_least(1), default=250, help="Mbit/s")
    parser.add_argument("--works", nargs="+", action=Different, choices=WORKS, default=WORKS)
    parser.add_argument("--sizes", type=float32_bytes, nargs="+", action=Different)
    report.add_arguments(parser)
    args = parser.parse_args()
    if args.hosts == 1:
        parser.error("argument --hosts: at least 2, or 0 for none")
    if args.hosts and (reason := why_not()):
        print(f"no hosts: {reason}", file=sys.stderr, flush=True)
        args.hosts = 0
    # Contenders are stopped during others' turns, and time jumps when they continue.
    os.environ.setdefault("PERSEUS_START_TIMEOUT", "3600")
    found = report.Report("c10d", file=args.json)
    print("median, p10 .. p90, ratio to the first", flush=True)
    for ranks in args.ranks:
        with on_one_host(ranks) as contest:
            measure(contest, {"ranks": ranks, "hosts": 1}, args, found)
    if args.hosts:
        with over_hosts(args) as contest:
            measure(contest, {"ranks": args.hosts, "hosts": args.hosts}, args, found)
    found.save(finished=True)
    print("\n".join(summary(found.rows)))
    if args.plot:
        draw(found.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
