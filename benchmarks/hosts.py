"""Perseus and its peers over several hosts with capped links, in turns.

python benchmarks/hosts.py [--shapes 4x1 2x2 ...] [--link 1000] [--flow 250]
                           [--parts links allreduce ...] [--quick] [--json FILE] [--plot FILE]

The hosts are network namespaces of this machine (contest/lab.py). --link and --flow are the Mbit/s
that a host, and each of its connections, may send. A shape is hosts x ranks on each. The first
shape runs all parts:

  links        what plain sockets move, from the side that connected and from the one that accepted
  allreduce    64 MiB, with the cap on connections and without it, against the limit
  slow         the same over 8 connections that fill the link together, one slowed to a tenth
  codec        the same with the fp16 codec
  wire         the same with data authenticated, and encrypted
  latency      allreduces of 4 bytes to 64 KiB
  collectives  4 MiB through all collectives
  steps        exposed communication of training steps; by default the accelerator is 10 times
               slower than a V100, as links are 10 times slower than 10 Gbit/s. Peers take part with
               the first model only: a step of BERT-large takes them over a minute.

The other shapes run allreduce and latency, with the cap on connections, beside the peers over Gloo;
MPI's take ten times as long. A full run takes less than an hour.

The limit of a link is what plain sockets move over 8 connections, or what the cap, which counts
whole frames, leaves for payload, whichever is more: no program can do better.

With several ranks on a host, all contenders except those over Gloo use shared memory inside it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contest import ending, report, training_step
from contest.arguments import Different, at_least, positive
from contest.conductor import Conductor, Times, percentile
from contest.lab import FILLING, Capacity, Lab, open_lab, why_not
from contest.launch import Contender, Host, variant
from contest.models import NAMES, V100
from contest.step_bound import bytes_on_the_link

LARGE = 64 << 20
#: Perseus finds its settings in these.
TUNING = 16 << 20

#: Where an MPI uses UCX, it would find that all hosts share this machine's memory.
TCP_ONLY = {"UCX_TLS": "tcp,self"}
GLOO: tuple[str | Contender, ...] = ("horovod gloo", "torch gloo")
MPI = tuple(variant(label, label, **TCP_ONLY) for label in ("horovod mpi", "open mpi C", "mpich C"))
PEERS = (*GLOO, *MPI)
#: Parts that run at every shape.
QUICK = ("allreduce", "latency")


@dataclass(frozen=True)
class Shape:
    """Numbers of hosts, and of ranks on each; "4x1" on the command line."""

    hosts: int
    ranks_per_host: int

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    def __repr__(self) -> str:
        return f"{self.hosts}x{self.ranks_per_host}"


def shape(text: str) -> Shape:
    hosts, by, ranks = text.partition("x")
    if not by:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 4x1")
    return Shape(at_least(2)(hosts), at_least(1)(ranks))


class Hosts:
    """Hosts of one shape, with a lab for each part, and the reports of the parts.

    first: this shape is measured in full.
    """

    def __init__(
        self, args: argparse.Namespace, shape: Shape, first: bool, reported: report.Report
    ) -> None:
        self.args = args
        self.shape = shape
        self.first = first
        self.report = reported

    def lab(self, flow: int | None) -> AbstractContextManager[Lab]:
        return open_lab(self.shape.hosts, self.args.link, flow)

    @contextmanager
    def contest(
        self, lab: Lab, contenders: Sequence[str | Contender], turn_seconds: float = 120
    ) -> Iterator[Conductor]:
        """Starts contenders within three minutes; those that do not start drop out."""
        hosts = [Host(lab.address(host), "eth0", tuple(lab.at(host))) for host in range(lab.hosts)]
        with Conductor(contenders, self.shape.ranks, hosts, time_out=180) as contest:
            contest.time_out = turn_seconds
            yield contest

    def peers(self) -> tuple[str | Contender, ...]:
        if self.args.no_peers:
            return ()
        return PEERS if self.first else GLOO

    def case(self, lab: Lab, work: str) -> dict[str, int | str]:
        flow = f"{lab.flow_mbit} a connection" if lab.flow_mbit else "no cap on connections"
        return {
            "work": work,
            "hosts": lab.hosts,
            "ranks": self.shape.ranks,
            "caps": f"{lab.link_mbit} Mbit/s, {flow}",
        }

    def tune(self, contest: Conductor, labels: Sequence[str]) -> None:
        """Runs the first steps, in which Perseus finds its settings; they are not measured."""
        steps = 0 if self.args.quick else self.args.tuning_steps
        if steps:
            contest.measure(
                "collective.allreduce",
                turns=1,
                iterations=steps,
                only=labels,
                elements=TUNING // 4,
            )


def capacity(lab: Lab, hosts: Hosts) -> Capacity:
    return lab.capacity(0.5 if hosts.args.quick else 5)


def add_large(
    hosts: Hosts, lab: Lab, contest: Conductor, work: str, link: Capacity
) -> dict[str, Times]:
    """Adds 64 MiB allreduces, with each contender's share of the link's capacity."""
    turns, often = (1, 1) if hosts.args.quick else (3, 5)
    slow = {one.label for one in MPI}  # 7 seconds an iteration
    times = contest.measure(
        "collective.allreduce",
        turns=turns,
        iterations={label: 1 if label in slow else often for label in contest.contenders},
        elements=LARGE // 4,
    )
    case = hosts.case(lab, work)
    before = len(hosts.report.rows)
    hosts.report.add(case, times)
    hosts.report.print_case(case)
    bits = bytes_on_the_link(LARGE, lab.hosts) * 8
    print(f"  {link}; of the larger")
    for row in hosts.report.rows[before:]:
        row.update(limit_mbit=link.limit, sockets_mbit=link.sockets, cap_mbit=link.cap, mbit=None)
        if row["median"]:
            row["mbit"] = bits / row["median"]
            shares = [bits / row[key] / link.limit for key in ("median", "p90", "p10")]
            share, low, high = (f"{value:.1%}" for value in shares)
            print(f"  {row['contender']:24} {row['mbit']:6.0f} Mbit/s  {share:>6}  {low} .. {high}")
    sys.stdout.flush()
    hosts.report.save()
    return times


def links(hosts: Hosts) -> None:
    args = hosts.args
    seconds = 0.5 if args.quick else 2
    print("plain sockets, Mbit/s that each host receives, all at once")
    for flow in dict.fromkeys((args.flow, None)):
        with hosts.lab(flow) as lab:
            for senders in ("connecting", "accepting"):
                for connections in (1, 4, FILLING):
                    moved = lab.plain_sockets(connections, senders=senders, seconds=seconds)
                    median, low, high = (percentile(moved, at) for at in (50, 10, 90))
                    hosts.report.also["links"].append(
                        {
                            "hosts": lab.hosts,
                            "link": args.link,
                            "flow": flow,
                            "senders": senders,
                            "connections": connections,
                            "mbit": median,
                            "p10": low,
                            "p90": high,
                        }
                    )
                    hosts.report.save()
                    caps = hosts.case(lab, "")["caps"]
                    many = f"{connections} connection{'s' if connections > 1 else ''}"
                    spread = f"{low:.0f} .. {high:.0f}"
                    print(f"  {caps:40} {many:14} {senders:11} {median:7.0f}  {spread}", flush=True)


def allreduce(hosts: Hosts) -> None:
    for flow in dict.fromkeys((hosts.args.flow, None) if hosts.first else (hosts.args.flow,)):
        with hosts.lab(flow) as lab:
            link = capacity(lab, hosts)
            with hosts.contest(lab, ("perseus", *hosts.peers())) as contest:
                hosts.tune(contest, ["perseus"])
                add_large(hosts, lab, contest, "allreduce of 64 MiB", link)


def slow(hosts: Hosts) -> None:
    """Slows host 0's busiest connection, which carries an eighth of its traffic to the next
    host."""
    streams = variant(
        "perseus",
        "perseus",
        PERSEUS_ALLREDUCE_STREAMS=str(FILLING),
        PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING="1",
    )
    flow = hosts.args.link // FILLING
    with hosts.lab(flow) as lab:
        link = capacity(lab, hosts)
        with hosts.contest(lab, (streams,)) as contest:
            add_large(hosts, lab, contest, "allreduce of 64 MiB, 8 streams", link)
            busiest = lab.connections(0)[0]
            with lab.slowed([(0, busiest)], flow / 10):
                work = "allreduce of 64 MiB, one of 8 streams slowed to a tenth"
                add_large(hosts, lab, contest, work, link)
        even, uneven = (row["median"] for row in hosts.report.rows[-2:])
        if even and uneven:
            print(f"  with the slow one {even / uneven:.0%} of without; the links' share is 89 %")


def codec(hosts: Hosts) -> None:
    contenders = (
        "perseus",
        variant("perseus", "perseus, fp16", PERSEUS_ALLREDUCE_DTYPE="fp16"),
    )
    with hosts.lab(hosts.args.flow) as lab:
        link = capacity(lab, hosts)
        with hosts.contest(lab, contenders) as contest:
            hosts.tune(contest, list(contest.contenders))
            times = add_large(hosts, lab, contest, "allreduce of 64 MiB, codecs", link)
    plain, coded = (of.median for of in times.values())
    if plain and coded:
        print(f"  fp16 is {plain / coded:.2f} times faster")


def wire(hosts: Hosts) -> None:
    contenders = (
        "perseus",
        *(
            variant("perseus", f"perseus, {choice}", PERSEUS_WIRE=choice)
            for choice in ("authenticated", "encrypted")
        ),
    )
    with hosts.lab(hosts.args.flow) as lab:
        link = capacity(lab, hosts)
        with hosts.contest(lab, contenders) as contest:
            hosts.tune(contest, list(contest.contenders))
            times = add_large(hosts, lab, contest, "allreduce of 64 MiB, PERSEUS_WIRE", link)
    plain = times.pop("perseus").median
    for label, of in times.items():
        if plain and of.median:
            print(
                f"  {label.partition(', ')[2]} takes {of.median / plain - 1:+.1%} of plain's time"
            )


def latency(hosts: Hosts) -> None:
    add_works(hosts, [("allreduce", size) for size in (4, 1 << 10, 64 << 10)])


def collectives(hosts: Hosts) -> None:
    works = ("allreduce", "broadcast", "allgather", "alltoall", "reducescatter")
    add_works(hosts, [(work, 4 << 20) for work in works])


def add_works(hosts: Hosts, works: Sequence[tuple[str, int]]) -> None:
    """Times collectives, given with the bytes of each rank's input."""
    with hosts.lab(hosts.args.flow) as lab:
        with hosts.contest(lab, ("perseus", *hosts.peers())) as contest:
            hosts.tune(contest, ["perseus"])
            for work, size in works:
                times = contest.measure(
                    f"collective.{work}",
                    turns=1 if hosts.args.quick else 3,
                    seconds=0.2 if hosts.args.quick else 0.5,
                    elements=size // 4,
                )
                case = hosts.case(lab, f"{work} of {report.bytes_text(size)}")
                hosts.report.add(case, times)
                hosts.report.print_case(case)
                hosts.report.save()


def steps(hosts: Hosts) -> None:
    args = hosts.args
    with hosts.lab(args.flow) as lab:
        link = capacity(lab, hosts)
        contenders = [
            variant(one, one.label, **TCP_ONLY) if one.launcher == "openmpi" else one
            for one in training_step.contenders(peers=not args.no_peers)
        ]
        with hosts.contest(lab, contenders, turn_seconds=1200) as contest:
            training_step.tune(contest, 0 if args.quick else args.tuning_steps, "googlenet")
            for name in args.models:
                case = hosts.case(lab, f"step of {name}")
                rows = training_step.measure(
                    hosts.report,
                    case,
                    contest,
                    name,
                    lambda size: bytes_on_the_link(size, lab.hosts) * 8 / (link.limit * 1e6),
                    slowdown=args.slowdown,
                    turns=1 if args.quick else 3,
                    iterations=2 if args.quick else 1,
                    peers=name == args.models[0],
                )
                title = f"step of {name}, {lab.hosts} hosts, {case['ranks']} ranks, {case['caps']}"
                training_step.print_steps(title, rows)
                hosts.report.save()


PARTS = {
    "links": links,
    "allreduce": allreduce,
    "slow": slow,
    "codec": codec,
    "wire": wire,
    "latency": latency,
    "collectives": collectives,
    "steps": steps,
}


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draws the exposed communication of the steps."""
    training_step.draw_exposed(content["rows"], file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    shapes = [shape(text) for text in ("4x1", "2x1", "8x1", "2x2", "4x2")]
    parser.add_argument(
        "--shapes",
        type=shape,
        nargs="+",
        action=Different,
        default=shapes,
        help="hosts x ranks on each",
    )
    parser.add_argument("--link", type=at_least(FILLING), default=1000, help="Mbit/s")
    parser.add_argument("--flow", type=at_least(1), default=250, help="Mbit/s")
    parser.add_argument("--parts", nargs="+", action=Different, choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--models",
        nargs="+",
        action=Different,
        choices=NAMES,
        default=("resnet50", "vgg16", "bert-large"),
    )
    parser.add_argument("--slowdown", type=positive, default=10, help="of the accelerator")
    parser.add_argument("--tuning-steps", type=at_least(0), default=50, help="before measuring")
    parser.add_argument("--no-peers", action="store_true", help="Perseus alone")
    report.add_arguments(parser)
    args = parser.parse_args()
    if args.plot and "steps" not in args.parts:
        parser.error("argument --plot: steps are drawn, and --parts leaves them out")
    if reason := why_not():
        sys.exit(f"no hosts: {reason}")
    # Contenders are stopped during others' turns, and time jumps when they continue.
    os.environ.setdefault("PERSEUS_START_TIMEOUT", "3600")
    everything = report.Report(
        "hosts", file=args.json, also={"links": [], "accelerator": V100.name}
    )
    for one in args.shapes:
        hosts = Hosts(args, one, one == args.shapes[0], everything)
        for part in args.parts:
            if hosts.first or part in QUICK:
                PARTS[part](hosts)
    everything.save(finished=True)
    if args.plot:
        draw(everything.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
