"""Messages between two ranks, there and back: Perseus, Open MPI and MPICH, in turns.

python benchmarks/messages.py [--sizes 4 1K 64M] [--distance far] [--quick] [--json FILE]
                              [--plot FILE]
python benchmarks/messages.py --hosts [--link 1000] [--flow 250] [--quick] [--json FILE]

Rank 0 sends to rank 1, which sends the same back: a time is that of both ways, and half of it that
of one. `perseus C, waiting` waits for each message by perseus_wait, as MPI's callers do. The copy
limit is two copies by one processor. Ratios are to Perseus.

With --hosts, the ranks are on two hosts, which are network namespaces of this machine
(contest/lab.py). --link and --flow are the Mbit/s that a host, and each of its connections, may
send. 64 MiB go there and back, with the cap on connections and without it. A share is that of the
link's limit: what plain sockets move over 8 connections, or what the cap, which counts whole
frames, leaves for payload, whichever is more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contest import charts, core_distance, ending, report
from contest.arguments import Different, at_least, float32_bytes
from contest.conductor import Conductor
from contest.lab import FILLING, Capacity, Lab, open_lab, why_not
from contest.launch import Host, variant
from contest.progress import progress

CONTENDERS = [
    variant("perseus C", "perseus C, waiting", CONTENDER_WAITS="1"),
    "open mpi C",
    "mpich C",
    "copy limit",
]
SIZES = [4 << 2 * power for power in range(13)]
#: Between hosts.
LARGE = 64 << 20
BETWEEN_HOSTS = ["perseus C"]
QUICK_SIZES = [4, 4096, 65536, 1 << 20, 64 << 20]


def draw(content: Mapping[str, Any], file: Path) -> None:
    charts.lines(
        charts.panels(content["rows"], "ranks"),
        file,
        charts.Words("A message there and back, inside a host", "median time of both ways"),
        x="bytes",
        scale=charts.DURATION,
    )


def between_hosts(args: argparse.Namespace) -> None:
    if reason := why_not():
        sys.exit(f"no hosts: {reason}")
    # Contenders are stopped during others' turns, and time jumps when they continue.
    os.environ.setdefault("PERSEUS_START_TIMEOUT", "3600")
    # Two rates beside one limit need no picture.
    messages = report.Report("messages", file=args.json, also={"has_picture": False})
    for flow in dict.fromkeys((args.flow, None)):
        with open_lab(2, args.link, flow) as lab:
            link = lab.capacity(0.5 if args.quick else 5)
            hosts = [Host(lab.address(host), "eth0", tuple(lab.at(host))) for host in range(2)]
            with Conductor(BETWEEN_HOSTS, 2, hosts, time_out=180) as contest:
                add_between_hosts(args, messages, contest, lab, link)
    messages.save(finished=True)


def add_between_hosts(
    args: argparse.Namespace,
    messages: report.Report,
    contest: Conductor,
    lab: Lab,
    link: Capacity,
) -> None:
    turns, iterations = (1, 1) if args.quick else (3, 3)
    work = {"elements": LARGE // 4}
    found = contest.measure("messages.pingpong", turns=turns, iterations=iterations, **work)
    flow = f"{lab.flow_mbit} a connection" if lab.flow_mbit else "no cap on connections"
    case = {"bytes": LARGE, "ranks": 2, "caps": f"{lab.link_mbit} Mbit/s, {flow}"}
    before = len(messages.rows)
    messages.add(case, found)
    messages.print_case(case)
    print(f"  {link}; of the larger")
    for row in messages.rows[before:]:
        row.update(limit_mbit=link.limit, sockets_mbit=link.sockets, cap_mbit=link.cap, mbit=None)
        if row["median"]:
            row["mbit"] = 2 * LARGE * 8 / row["median"]
            shares = [2 * LARGE * 8 / row[key] / link.limit for key in ("median", "p90", "p10")]
            share, low, high = (f"{value:.1%}" for value in shares)
            print(f"  {row['contender']:24} {row['mbit']:6.0f} Mbit/s  {share:>6}  {low} .. {high}")
    sys.stdout.flush()
    messages.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--sizes", type=float32_bytes, nargs="+", action=Different, help="bytes; 4 .. 64M"
    )
    core_distance.add_argument(parser)
    parser.add_argument("--hosts", action="store_true", help="between two hosts")
    parser.add_argument("--link", type=at_least(FILLING), default=1000, help="Mbit/s")
    parser.add_argument("--flow", type=at_least(1), default=250, help="Mbit/s")
    report.add_arguments(parser)
    args = parser.parse_args()
    if args.hosts:
        if args.sizes or args.distance or args.plot:
            parser.error("--hosts takes neither --sizes nor --distance nor --plot")
        return between_hosts(args)
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
